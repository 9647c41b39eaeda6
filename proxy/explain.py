"""What would become of one request under a configuration, and why: no server, no socket, plain values out. Pure.

It asks what serves: the gate for the facts of the head, the router for the route, the route's own answer or rewrite for
what is sent. What only the parser refuses (a malformed request line) is refused here in its place. Nothing is counted,
no policy is asked: they are listed in the order in which they would be, with their settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from multidict import CIMultiDict, CIMultiDictProxy

from proxy import gate
from proxy.chain import Chain
from proxy.client_address import ClientAddress
from proxy.config import Listener
from proxy.config_routes import ENGINE, ProxyConfig, route_of
from proxy.errors import Kind, api_of
from proxy.exchange import Exchange
from proxy.patterns import parse_pattern
from proxy.policy import POLICIES
from proxy.rewrite import request_target
from proxy.route import ESCAPED_SLASH, Route, Router, fits_host, host_rank
from proxy.upstream.upstream import ENGINE_FIRST_BYTE_S

_URL = re.compile(r"(?:(https?)://([^/?]*))?(.*)", re.DOTALL | re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}


class Asked(NamedTuple):
    """A request as somebody types it. url: http://HOST[:PORT]/PATH, or only /PATH. client: the address of the socket's
    other end, "" for none in particular."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    client: str = ""


def explain(config: ProxyConfig, asked: Asked) -> dict[str, Any]:
    """The story of the request, in the order in which it happens. ``outcome`` is refused, redirect (by the listener),
    no_route, answer or forward. config must hold together (``cross_check``)."""
    found = _URL.fullmatch(asked.url)
    assert found is not None
    scheme, authority, target = (found[1] or "").lower(), found[2], found[3]
    if not target.startswith("/"):
        target = f"/{target}"
    listeners = [_seen(listener, scheme, authority or "") for listener in config.listeners]
    told: dict[str, Any] = {"listeners": [{"address": each.address, "why_not": why} for each, why in listeners]}
    taking = [listener for listener, why in listeners if why is None]
    listener = taking[0] if taking else config.listeners[0]
    told |= {"listener": listener.address if taking else None}
    routes = [route_of(table, i, config, Chain([])) for i, table in enumerate(config.routes)]
    router = Router(routes)
    scheme = scheme or ("https" if listener.tls is not None else "http")
    x, refused = _exchange(asked, scheme, authority, target, listener, encoded_slash=router.encoded_slash)
    if x is None or refused is not None:
        assert refused is not None
        return told | {"outcome": "refused", "status": refused.kind.status, "message": refused.message}
    told |= {"host": x.host, "path": x.path, "query": x.query, "client": x.client or None}
    if taking and listener.redirect is not None:
        return told | {"outcome": "redirect", "status": 308, "message": "the listener sends everything to https"}
    x.route = best = router.find(x)
    if best is not None and not router.is_plain(x, best):
        return told | {"outcome": "refused", "status": Kind.BAD_PATH.status, "message": ESCAPED_SLASH}
    told["routes"] = [_verdict(route, best, x) for route in routes]
    if best is None:
        allowed = router.allowed(x)
        status = Kind.METHOD.status if allowed else Kind.NOT_FOUND.status
        return told | {"outcome": "no_route", "status": status, "allow": list(allowed)}
    told |= {"route": {"index": best.index, "name": best.name, "why": _why(best, x), "api": api_of(x)}}
    told["policies"] = list(_policies(best, config))
    if best.answer is not None:
        reply = best.answer(x)
        headers = [[name.decode(), value.decode()] for name, value in reply.headers]
        return told | {"outcome": "answer", "status": reply.status, "headers": headers, "body_bytes": len(reply.body)}
    if best.rewrite is not None:
        best.rewrite(x)
    sent = {"request_line": f"{x.method} {request_target(x)} HTTP/1.1", "host": x.authority}
    models = config.models_of(best.config)
    if models:
        told |= {"models": {name: config.model_routes[name].model_dump(mode="json") for name in models}}
        told |= {"default": best.config.models.default if best.config.models is not None else None}
    upstreams = [_upstream(name, best, config) for name in config.targets_of(best.config)]
    return told | {"outcome": "forward", "sent": sent, "upstream": upstreams[0], "upstreams": upstreams}


def _seen(listener: Listener, scheme: str, authority: str) -> tuple[Listener, str | None]:
    """The listener, and why it does not take a request for this scheme and authority; None: it does."""
    if not scheme:
        return listener, None
    if listener.address.startswith("unix:"):
        return listener, "it is a unix socket, which has no URL"
    port = authority.rpartition("]")[2].rpartition(":")[2] or str(_PORTS[scheme])
    port = port if port.isdigit() else str(_PORTS[scheme])
    own = listener.address.rpartition(":")[2]
    if own != port:
        return listener, f"its port is {own}, not {port}"
    if (listener.tls is not None) != (scheme == "https"):
        return listener, f"it speaks {'https' if listener.tls is not None else 'http'}, not {scheme}"
    return listener, None


def _exchange(
    asked: Asked, scheme: str, authority: str | None, target: str, listener: Listener, *, encoded_slash: bool
) -> tuple[Exchange | None, gate.Refusal | None]:
    """The exchange that the front would make, or why it would not."""
    if not re.fullmatch("[!-~]+", target):
        message = "the request line is malformed: clients escape spaces and what is not ASCII, like %20"
        return None, gate.Refusal(Kind.BAD_REQUEST, message)
    headers = list(asked.headers)
    if authority is not None and not any(name.lower() == "host" for name, _ in headers):
        headers.insert(0, ("Host", authority))
    raw = [(name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in headers]
    try:
        facts = gate.check(
            asked.method,
            target,
            (1, 1),
            raw,
            max_headers_bytes=listener.limits.headers,
            encoded_slash=encoded_slash,
        )
    except gate.Refused as refused:
        return None, refused.refusal
    x = Exchange(
        asked.method,
        target,
        (1, 1),
        scheme,
        facts.host,
        facts.authority,
        facts.path,
        facts.send_path,
        facts.query,
        raw,
        CIMultiDictProxy(CIMultiDict(headers)),
        asked.client,
        facts.content_length,
        facts.has_body,
        0.0,
    )
    x.client, x.trusted = ClientAddress(listener.trusted_proxies).resolve(asked.client, raw)
    return x, None


def _verdict(route: Route, best: Route | None, x: Exchange) -> dict[str, Any]:
    failed = _first_failing(route, x)
    if route is not best and failed is None and best is not None:
        failed = _behind(route, best)
    return {"index": route.index, "name": route.name, "why_not": failed}


def _first_failing(route: Route, x: Exchange) -> str | None:
    if not fits_host(route.host, x.host):
        return f"the host is not {route.host}"
    if not parse_pattern(route.path).matches(x.path):
        return f"the path does not fit {route.path}"
    return route.conditions.first_failing(x) if route.conditions is not None else None


def _behind(route: Route, best: Route) -> str:
    """Why a route that fits comes after the one that took the request."""
    if route.priority != best.priority:
        rule = "has the higher priority"
    elif host_rank(route.host) != host_rank(best.host):
        rule = "says more of the host"
    elif parse_pattern(route.path).shape != parse_pattern(best.path).shape:
        rule = "says more of the path"
    else:
        rule = "has more conditions"
    return f"it fits, but routes[{best.index}] {rule}"


def _why(route: Route, x: Exchange) -> list[str]:
    """What of the route's match the request fits."""
    pattern = parse_pattern(route.path)
    values = "".join(f", {{{name}}} is {value!r}" for name, value in pattern.values(x.send_path).items())
    why = [f"host {x.host or 'none'} fits {route.host or 'any'}", f"path {x.path} fits {route.path}{values}"]
    if route.conditions is not None:
        why += route.conditions.described()
    return [*why, f"priority {route.priority}"] if route.priority else why


def _policies(route: Route, config: ProxyConfig) -> Iterator[dict[str, Any]]:
    settings = route.config.policies.model_dump(mode="json")
    for module in POLICIES:
        own = settings[module.NAME]
        if own is not None:
            if module.NAME == "rate_limit":
                own = {name: config.limits[name].model_dump(mode="json") for name in own}
            yield {"name": module.NAME, "settings": own}


def _upstream(name: str, route: Route, config: ProxyConfig) -> dict[str, Any]:
    table = config.upstreams.get(name)
    own = route.config
    timeouts = own.timeouts or (table.timeouts if table is not None else None)
    retry = own.retry or (table.retry if table is not None else None) or config.defaults.retry
    if timeouts is None:
        timeouts = config.defaults.timeouts
        if name == ENGINE:
            patience_s = max(timeouts.first_byte, ENGINE_FIRST_BYTE_S)
            timeouts = timeouts.model_copy(update={"first_byte": patience_s})
    spelt = timeouts.model_dump(mode="json")
    servers = table.model_dump(mode="json")["servers"] if table is not None else ["the local engine"]
    return {"name": name, "servers": servers, "timeouts": spelt, "retry": retry.model_dump(mode="json")}
