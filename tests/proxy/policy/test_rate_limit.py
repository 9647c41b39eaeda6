"""Limits as a client sees them: what passes, what the fields say, when to come back."""

from __future__ import annotations

import json
from typing import Any

import http_sf
import pytest

from proxy.exchange import Head
from proxy.shared.table import SharedTable
from tests.proxy.make import chain, exchange, serve

ALL = ["ietf", "x-ratelimit", "openai"]


def text(head: Head, name: str) -> str | None:
    value = head.get(name.lower().encode())
    return value.decode() if value is not None else None


def limit(requests: str, **more: Any) -> dict[str, Any]:
    return {"requests": requests, **more}


def test_H02_sleeping_exactly_retry_after_succeeds() -> None:
    served = chain({"rate_limit": ["a"]}, limits={"a": limit("10/min")})
    now = 0.3
    for _ in range(10):
        assert serve(served, exchange(now=now), now).status == 200
    for later in (4.1, 5.9, 5.999):
        refused = serve(served, exchange(now=now + later), now + later)
        assert refused.status == 429
        wait_s = int(text(refused, "Retry-After") or "")
        assert wait_s >= 1
        assert http_sf.parse(refused.get(b"ratelimit") or b"", tltype="list") == [("a", {"r": 0, "t": wait_s})]
    assert serve(served, exchange(now=now + 5.999 + wait_s), now + 5.999 + wait_s).status == 200


def test_the_fields_of_an_answer() -> None:
    served = chain({"rate_limit": ["burst"]}, limits={"burst": limit("100/min", headers=ALL)})
    head = serve(served, exchange())
    assert text(head, "RateLimit-Policy") == '"burst";q=100;w=60'
    assert text(head, "RateLimit") == '"burst";r=99;t=1'
    assert text(head, "X-RateLimit-Limit") == "100"
    assert text(head, "X-RateLimit-Remaining") == "99"
    assert text(head, "X-RateLimit-Reset") == "1700000001"
    assert text(head, "x-ratelimit-limit-requests") == "100"
    assert text(head, "x-ratelimit-remaining-requests") == "99"
    assert text(head, "x-ratelimit-reset-requests") == "600ms"


def test_only_the_styles_that_were_asked_for() -> None:
    for style, field in (("ietf", "ratelimit"), ("x-ratelimit", "x-ratelimit-limit")):
        names = {n.lower().decode() for n, _ in serve(_styled(style), exchange()).headers}
        assert field in names
        assert not {"x-ratelimit-limit-requests"} & names
    assert "ratelimit" not in {n.lower().decode() for n, _ in serve(_styled("openai"), exchange()).headers}


def _styled(style: str) -> Any:
    return chain({"rate_limit": ["a"]}, limits={"a": limit("5/s", headers=[style])})


def test_a_burst_smaller_than_the_count_has_its_own_window() -> None:
    served = chain({"rate_limit": ["a"]}, limits={"a": limit("60/min", burst=5)})
    heads = [serve(served, exchange()) for _ in range(6)]
    assert [head.status for head in heads] == [200] * 5 + [429]
    assert text(heads[0], "RateLimit-Policy") == '"a";q=5;w=5'


def test_all_limits_must_pass_and_refused_ones_consume_nothing() -> None:
    limits = {"tight": limit("1/min", key="all"), "loose": limit("10/min")}
    served = chain({"rate_limit": ["loose", "tight"]}, limits=limits)
    assert serve(served, exchange()).status == 200
    for _ in range(5):
        refused = serve(served, exchange())
        assert refused.status == 429
        assert text(refused, "RateLimit") == '"loose";r=9;t=6, "tight";r=0;t=60'
    assert text(refused, "Retry-After") == "60"


def test_the_longest_wait_counts_when_several_refuse() -> None:
    limits = {"hour": limit("1/h"), "minute": limit("1/min")}
    served = chain({"rate_limit": ["minute", "hour"]}, limits=limits)
    serve(served, exchange())
    reply = served.admit(exchange(), 0.0)
    assert reply is not None
    problem = json.loads(reply.body)
    assert problem["violated-policies"] == ["minute", "hour"]
    assert "The limit hour of 1 requests in 3600 s" in problem["detail"]
    assert dict(reply.headers)[b"Retry-After"] == b"3600"


def test_fields_with_room_for_one_limit_tell_the_tightest() -> None:
    limits = {"a": limit("100/min", headers=["x-ratelimit"]), "b": limit("5/min", headers=["x-ratelimit"])}
    head = serve(chain({"rate_limit": ["a", "b"]}, limits=limits), exchange())
    assert text(head, "X-RateLimit-Limit") == "5"
    assert text(head, "RateLimit") is None


@pytest.mark.parametrize(
    ("key", "first", "second", "shared"),
    [
        ("client", {"peer": "192.0.2.1"}, {"peer": "192.0.2.2"}, False),
        ("client", {"peer": "2001:db8::1"}, {"peer": "2001:db8::2"}, True),
        ("api_key", {"key_id": "a"}, {"key_id": "b"}, False),
        ("api_key", {"key_id": "a", "peer": "192.0.2.1"}, {"key_id": "a", "peer": "192.0.2.2"}, True),
        ("all", {"peer": "192.0.2.1"}, {"peer": "192.0.2.2"}, True),
        ("route", {"peer": "192.0.2.1"}, {"peer": "192.0.2.2"}, True),
    ],
)
def test_whose_requests_are_counted_together(
    key: str, first: dict[str, str], second: dict[str, str], shared: bool
) -> None:
    served = chain({"rate_limit": ["a"]}, limits={"a": limit("1/min", key=key)})
    assert serve(served, exchange(**first)).status == 200
    assert serve(served, exchange(**second)).status == (429 if shared else 200)


def test_a_limit_is_one_for_all_routes_that_name_it_unless_it_counts_by_route() -> None:
    shared = SharedTable.alone()
    limits = {"box": limit("1/min"), "each": limit("1/min", key="route")}
    for name, status in (("box", 429), ("each", 200)):
        for route, expected in (("r1", 200), ("r2", status)):
            served = chain({"rate_limit": [name]}, limits=limits, shared=shared, route=route)
            assert serve(served, exchange()).status == expected


def test_H04_a_limit_lowered_and_raised_by_reloads() -> None:
    shared = SharedTable.alone()
    served = chain({"rate_limit": ["a"]}, limits={"a": limit("100/min")}, shared=shared)
    for _ in range(80):
        assert serve(served, exchange()).status == 200

    served = chain({"rate_limit": ["a"]}, limits={"a": limit("50/min")}, shared=shared)
    refused = serve(served, exchange())
    assert refused.status == 429
    assert text(refused, "RateLimit") == '"a";r=0;t=38'
    assert text(refused, "Retry-After") == "38"

    served = chain({"rate_limit": ["a"]}, limits={"a": limit("200/min")}, shared=shared)
    assert text(serve(served, exchange()), "RateLimit") == '"a";r=119;t=25'


def test_a_build_that_is_discarded_changes_nothing() -> None:
    shared = SharedTable.alone()
    served = chain({"rate_limit": ["a"]}, limits={"a": limit("2/min")}, shared=shared)
    assert serve(served, exchange()).status == 200
    chain({"rate_limit": ["a", "b"]}, limits={"a": limit("1/h"), "b": limit("1/h")}, shared=shared)
    assert text(serve(served, exchange()), "RateLimit") == '"a";r=0;t=30'


def test_refusals_are_counted_by_limit() -> None:
    served = chain({"rate_limit": ["a"]}, limits={"a": limit("1/min")})
    for _ in range(3):
        serve(served, exchange())
    assert served.policies[-1]._limits[0].refused.value == 2
