"""The policy chain alone: what admit, respond and settle cost one request, in this process.

Owns the exchange that stands for the benchmark's GET; the policies are those of bench/headrace.yaml.in.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import yaml
from multidict import CIMultiDict

from bench.peers import Setup, headrace_yaml
from proxy.cells import Cells
from proxy.chain import Chain
from proxy.config import Limit
from proxy.exchange import Ending, Exchange, Head, Outcome
from proxy.policy import POLICIES, PolicyEnv, PolicySet, States, build_chain

_HEADERS = ((b"Host", b"127.0.0.1:8080"), (b"User-Agent", b"getload"), (b"Accept", b"*/*"))
_NUM_EXCHANGES = 50  # few enough to stay in the cache, as requests do
_NUM_ROUNDS = 400


def policy_names() -> list[str]:
    """The policies that are on in the configuration that is measured, in the order of the chain."""
    policies = _policies(_document())
    return [module.NAME for module in POLICIES if getattr(policies, module.NAME) is not None]


def time_chain_us() -> float:
    """Microseconds of admit, respond and settle for one request: the median of some rounds over new exchanges."""
    chain = _chain(_document())
    return statistics.median(_round_us(chain) for _ in range(_NUM_ROUNDS))


def _round_us(chain: Chain) -> float:
    now = time.monotonic()
    exchanges = [_exchange(now) for _ in range(_NUM_EXCHANGES)]
    heads = [Head(200, [(b"Content-Type", b"text/plain")], 128) for _ in exchanges]
    outcome = Outcome(Ending.COMPLETE, 200)
    begun_at = time.perf_counter()
    for x, head in zip(exchanges, heads, strict=True):
        if chain.admit(x, now) is not None:
            raise SystemExit("the policies refuse the benchmark's own request")
        chain.respond(x, head, now)
        chain.settle(x, outcome, now)
    return (time.perf_counter() - begun_at) / len(exchanges) * 1e6


def _document() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(headrace_yaml("/nowhere", 8080, [8081], Setup()))
    return document


def _policies(document: dict[str, Any]) -> PolicySet:
    return PolicySet.model_validate_json(json.dumps(document["routes"][0]["policies"]))


def _chain(document: dict[str, Any]) -> Chain:
    limits = {name: Limit.model_validate_json(json.dumps(table)) for name, table in document["limits"].items()}
    env = PolicyEnv("*/*", limits, {}, States(), Cells(), emit=lambda line: None)
    return build_chain(_policies(document), env)


def _exchange(now: float) -> Exchange:
    return Exchange(
        method="GET",
        target="/",
        version=(1, 1),
        scheme="http",
        host="127.0.0.1",
        authority="127.0.0.1:8080",
        path="/",
        send_path="/",
        query="",
        headers=_HEADERS,
        fields=CIMultiDict((name.decode(), value.decode()) for name, value in _HEADERS),
        peer="127.0.0.1",
        content_length=None,
        has_body=False,
        started_at=now,
        wall_at=1e9,
        client="127.0.0.1",
    )
