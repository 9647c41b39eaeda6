"""Exchanges and policies as tests want them: one line each, with only what the test is about."""

from __future__ import annotations

import json
from typing import Any

from multidict import CIMultiDict, CIMultiDictProxy

from proxy.cells import Cells
from proxy.chain import Chain
from proxy.config import Limit, Materials
from proxy.config_routes import ProxyConfig, Route
from proxy.exchange import Ending, Exchange, Head, Outcome
from proxy.policy import PolicyEnv, States, build_chain
from proxy.shared.table import SharedTable

COMPLETE = Outcome(Ending.COMPLETE, 200)

Fields = list[tuple[str, str]]


def exchange(
    target: str = "/", headers: Fields | None = None, *, peer: str = "203.0.113.7", now: float = 0.0, **facts: Any
) -> Exchange:
    """A GET as the front would hand it over. facts: any other field of Exchange."""
    path, _, query = target.partition("?")
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers or []]
    fields = CIMultiDictProxy(CIMultiDict([(n.decode(), v.decode("utf-8", "surrogateescape")) for n, v in raw]))
    required: dict[str, Any] = {
        "method": "GET",
        "target": target,
        "version": (1, 1),
        "scheme": "http",
        "host": "a.example",
        "authority": "a.example",
        "path": path,
        "send_path": path,
        "query": query,
        "headers": raw,
        "fields": fields,
        "peer": peer,
        "content_length": None,
        "has_body": False,
        "started_at": now,
        "wall_at": 1_700_000_000.0 + now,
        "client": peer,
    }
    x = Exchange(**{name: facts.pop(name, value) for name, value in required.items()})
    for name, value in facts.items():
        setattr(x, name, value)
    return x


def proxy_config(**tables: Any) -> ProxyConfig:
    """A configuration with one listener, and these tables as YAML would have them."""
    document = {"listeners": [{"address": "127.0.0.1:8080"}], **tables}
    return ProxyConfig.model_validate_json(json.dumps(document))


def chain(
    policies: dict[str, Any],
    *,
    limits: dict[str, dict[str, Any]] | None = None,
    materials: Materials | None = None,
    states: States | None = None,
    lines: list[bytes] | None = None,
    cells: Cells | None = None,
    route: str = "r",
    shared: SharedTable | None = None,
) -> Chain:
    """The chain of a route with this ``policies:`` table; drawn digits are always 0x11, lines go to ``lines``."""
    built = Route.model_validate_json(json.dumps({"to": "engine", "policies": policies})).policies
    env = PolicyEnv(
        route=route,
        limits={name: Limit.model_validate_json(json.dumps(table)) for name, table in (limits or {}).items()},
        materials=materials or {},
        states=states or States(),
        cells=cells or Cells(),
        emit=(lines if lines is not None else []).append,
        draw_hex=lambda size: "11" * size,
        shared=shared or SharedTable.alone(),
    )
    return build_chain(built, env)


def answer(served_by: Chain, x: Exchange, now: float = 0.0) -> Head:
    """The head that the client sees: the chain's Reply or a 200, after respond; the exchange is not settled yet."""
    reply = served_by.admit(x, now) or next(
        (found for part in range(served_by.num_rest) if (found := served_by.admit_rest(x, now, part)) is not None), None
    )
    head = Head(reply.status, list(reply.headers)) if reply is not None else Head(200, [])
    served_by.respond(x, head, now)
    return head


def serve(served_by: Chain, x: Exchange, now: float = 0.0) -> Head:
    """``answer``, and settled."""
    head = answer(served_by, x, now)
    served_by.settle(x, COMPLETE, now)
    return head
