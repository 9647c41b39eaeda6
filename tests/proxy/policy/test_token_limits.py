"""Tokens of named limits: taken before, settled after; what clients are told of them."""

from __future__ import annotations

import json
from typing import Any

import http_sf
import pytest

from proxy.cells import Cells
from proxy.config import Limit
from proxy.exchange import Head
from proxy.policy import PolicyEnv, States
from proxy.policy.rate_limit import build
from proxy.policy.token_limits import TokenLimits, build_token_limits
from proxy.shared.table import SharedTable
from tests.proxy.make import exchange


class Beside:
    rate_limit = ("a",)


def env(**table: Any) -> PolicyEnv:
    limits = {"a": Limit.model_validate_json(json.dumps(table))}
    shared = SharedTable.alone()
    return PolicyEnv("r", limits, {}, States(), Cells(), None, lambda size: "11" * size, shared, Beside())  # type: ignore[arg-type]


def made(**table: Any) -> TokenLimits:
    limits = build_token_limits(env(**table))
    assert limits is not None
    return limits


@pytest.mark.parametrize("algorithm", ["gcra", "sliding"])
def test_what_was_taken_is_settled_by_what_was_used(algorithm: str) -> None:
    limits = made(tokens="1000/day", algorithm=algorithm, headers=["ietf", "openai"])
    x = exchange()
    assert limits.admit(x, 600, 1.0) is None
    head = Head(200, [])
    limits.respond(x, head, 1.0)
    fields = {name.decode(): value for name, value in head.headers}
    policy = http_sf.parse(fields["RateLimit-Policy"], tltype="list")
    assert policy == [("a.tokens", {"q": 1000, "w": 86400, "qu": "tokens"})]
    assert http_sf.parse(fields["RateLimit"], tltype="list")[0][1]["r"] == 400
    assert fields["x-ratelimit-limit-tokens"] == b"1000"
    assert fields["x-ratelimit-remaining-tokens"] == b"400"
    assert fields["x-ratelimit-reset-tokens"].endswith(b"s")
    limits.settle(x, 100, 2.0)
    limits.settle(x, 100, 2.0)  # once
    assert limits.admit(exchange(), 900, 2.0) is None
    assert limits.admit(exchange(), 1, 2.0) is not None


def test_a_request_that_used_more_is_owed_by_one_burst_at_most() -> None:
    limits = made(tokens="100/s")
    x = exchange()
    assert limits.admit(x, 50, 0.0) is None
    limits.settle(x, 5000, 0.0)
    refused = limits.admit(exchange(), 1, 0.0)
    assert refused is not None
    assert dict(refused.headers)[b"Retry-After"] == b"2"
    assert limits.admit(exchange(), 1, 1.02) is None


def test_a_refused_request_gives_its_place_among_the_requests_back() -> None:
    surroundings = env(requests="2/day", tokens="10/day")
    requests, tokens = build(("a",), surroundings), build_token_limits(surroundings)
    assert tokens is not None
    for _ in range(5):
        x = exchange()
        assert requests.admit(x, 0.0) is None
        assert tokens.admit(x, 11, 0.0) is not None
        tokens.settle(x, 7, 0.0)  # of what was refused nothing was taken
    for _ in range(2):
        x = exchange()
        assert requests.admit(x, 0.0) is None
        assert tokens.admit(x, 5, 0.0) is None
    assert requests.admit(exchange(), 0.0) is not None


def test_what_never_fits_is_said_so_and_not_to_be_tried_again() -> None:
    limits = made(tokens="1000/min", headers=["ietf", "x-ratelimit", "openai"])
    x = exchange()
    reply = limits.admit(x, 1001, 0.0)
    assert reply is not None
    assert b"Retry-After" not in dict(reply.headers)
    assert "needs 1001 tokens, more than the limit a ever has at once: 1000" in json.loads(reply.body)["detail"]
    head = Head(429, list(reply.headers))
    limits.respond(x, head, 0.0)
    assert http_sf.parse(head.get(b"ratelimit") or b"", tltype="list")[0][1] == {"r": 1000, "t": 60}
    assert head.get(b"x-ratelimit-reset-tokens") == b"1m0s"


@pytest.mark.parametrize(("table", "window_s"), [({"burst": 500}, 30), ({"algorithm": "sliding"}, 60)])
def test_RateLimit_of_what_never_fits_tells_the_window(table: dict[str, Any], window_s: int) -> None:
    limits, x, head = made(tokens="1000/min", **table), exchange(), Head(429, [])
    assert limits.admit(x, 8000, 0.0) is not None
    limits.respond(x, head, 0.0)
    assert http_sf.parse(head.get(b"ratelimit") or b"", tltype="list")[0][1]["t"] == window_s
    assert http_sf.parse(head.get(b"ratelimit-policy") or b"", tltype="list")[0][1]["w"] == window_s


def test_on_trial_nobody_is_refused() -> None:
    limits = made(tokens="10/day", dry_run=True)
    assert [limits.admit(exchange(), 9, 0.0) for _ in range(3)] == [None] * 3


def test_a_route_without_token_limits_has_none() -> None:
    assert build_token_limits(env(requests="1/s")) is None
