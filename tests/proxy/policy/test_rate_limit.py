"""Limits as a client sees them: what passes, what the fields say, when to come back."""

from __future__ import annotations

import json
from typing import Any

import http_sf
import pytest

from proxy.cells import Cells
from proxy.exchange import Head
from proxy.keys import KeyEntry
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


def key(name: str, tenant: str, team: str = "") -> KeyEntry:
    return KeyEntry(name, "sha256:" + "0" * 64, "", None, tenant, team)


def _styled(style: str) -> Any:
    return chain({"rate_limit": ["a"]}, limits={"a": limit("5/s", headers=[style])})


def test_a_burst_smaller_than_the_count_has_its_own_window() -> None:
    served = chain({"rate_limit": ["a"]}, limits={"a": limit("60/min", burst=5)})
    heads = [serve(served, exchange()) for _ in range(6)]
    assert [head.status for head in heads] == [200] * 5 + [429]
    assert text(heads[0], "RateLimit-Policy") == '"a";q=5;w=5'


def test_all_limits_must_pass_and_refused_ones_consume_nothing() -> None:
    limits = {"tight": limit("1/min", key="all", jitter="0%"), "loose": limit("10/min")}
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
        ("client/24", {"peer": "192.0.2.1"}, {"peer": "192.0.2.200"}, True),
        ("client/24", {"peer": "192.0.2.1"}, {"peer": "192.0.3.1"}, False),
        ("client/24/48", {"peer": "2001:db8:1:2::1"}, {"peer": "2001:db8:1:3::1"}, True),
        ("client/24", {"peer": "2001:db8:1:2::1"}, {"peer": "2001:db8:1:3::1"}, False),
        ("client/24", {"peer": "2001:db8:1:2::1%eth0"}, {"peer": "2001:db8:1:2::2"}, True),
        ("tenant", {"key": key("a", "acme")}, {"key": key("b", "acme")}, True),
        ("tenant", {"key": key("a", "acme")}, {"key": key("b", "other")}, False),
        ("team", {"key": key("a", "acme", "red")}, {"key": key("b", "other", "red")}, False),
        ("team", {"key": key("a", "acme", "red")}, {"key": key("b", "acme", "red")}, True),
        ("header:X-Shop", {"headers": [("x-shop", "1")]}, {"headers": [("X-Shop", "2")]}, False),
        ("header:X-Shop", {}, {"headers": [("X-Shop", "")]}, True),
        (["client", "header:X-Shop"], {"headers": [("X-Shop", "1")]}, {"headers": [("X-Shop", "2")]}, False),
        (["api_key", "client"], {"key_id": "a", "peer": "192.0.2.1"}, {"key_id": "a", "peer": "192.0.2.2"}, False),
        (["api_key", "client"], {"key_id": "a"}, {"key_id": "a"}, True),
        ("route", {"peer": "192.0.2.1"}, {"peer": "192.0.2.2"}, True),
    ],
)
def test_whose_requests_are_counted_together(
    key: str | list[str], first: dict[str, Any], second: dict[str, Any], shared: bool
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


@pytest.mark.parametrize("style", ["gcra", "sliding"])
def test_a_limit_on_trial_counts_and_refuses_nobody(style: str) -> None:
    cells = Cells()
    limits = {"new": limit("2/min", dry_run=True, algorithm=style, headers=ALL), "old": limit("4/min")}
    served = chain({"rate_limit": ["new", "old"]}, limits=limits, cells=cells)
    heads = [serve(served, exchange()) for _ in range(6)]
    assert [head.status for head in heads] == [200] * 4 + [429] * 2
    assert text(heads[0], "RateLimit") == '"old";r=3;t=15'  # the one on trial is not told
    assert text(heads[0], "X-RateLimit-Limit") is None
    would = "headrace_rate_limit_dry_run_total"
    assert cells.counter(would, "", {"limit": "new", "unit": "requests"}).value == 2  # what the others let pass


def test_H01_a_sliding_window_by_name() -> None:
    served = chain({"rate_limit": ["a"]}, limits={"a": limit("10/min", algorithm="sliding")})
    heads = [serve(served, exchange(now=at), at) for at in [59.9] * 10 + [60.1] * 10]
    assert [head.status for head in heads] == [200] * 10 + [429] * 10
    assert text(heads[0], "RateLimit-Policy") == '"a";q=10;w=60'
    wait_s = int(text(heads[-1], "Retry-After") or "")
    assert http_sf.parse(heads[-1].get(b"ratelimit") or b"", tltype="list") == [("a", {"r": 0, "t": wait_s})]
    assert serve(served, exchange(now=60.1 + wait_s), 60.1 + wait_s).status == 200


def test_who_shares_a_limit_is_told_to_come_back_at_different_times() -> None:
    served = chain({"rate_limit": ["a"]}, limits={"a": limit("1/min", key="all", jitter="50%")})
    serve(served, exchange())
    refused = serve(served, exchange())  # drawn: 0x1111 of 0x10000
    assert text(refused, "Retry-After") == "62"
    assert text(refused, "RateLimit") == '"a";r=0;t=62'  # the two agree
    alone = chain({"rate_limit": ["a"]}, limits={"a": limit("1/min", key="api_key")})
    serve(alone, exchange())
    assert text(serve(alone, exchange()), "Retry-After") == "60"


def relayed(served: Any, *fields: tuple[bytes, bytes]) -> list[tuple[str, str]]:
    """The fields of limits in an upstream's answer when it has passed."""
    x, head = exchange(), Head(200, list(fields))
    assert served.admit(x, 0.0) is None
    served.respond(x, head, 0.0)
    return [(name.decode(), value.decode()) for name, value in head.headers]


def test_an_origins_own_limits_are_never_loosened() -> None:
    served = chain({"rate_limit": ["a"]}, limits={"a": limit("100/min", headers=ALL)})
    tight = relayed(
        served,
        (b"RateLimit", b'"their";r=2;t=9'),
        (b"RateLimit-Policy", b'"their";q=5;w=9'),
        (b"X-RateLimit-Remaining", b"2, 2;w=9"),
        (b"X-RateLimit-Limit", b"5"),
        (b"x-ratelimit-remaining-requests", b"3"),
        (b"x-ratelimit-remaining-tokens", b"77"),
    )
    combined = ", ".join(value for name, value in tight if name == "RateLimit")
    assert http_sf.parse(combined.encode(), tltype="list") == [("their", {"r": 2, "t": 9}), ("a", {"r": 99, "t": 1})]
    assert [row for row in tight if row[0].lower().startswith("x-ratelimit")] == [
        ("X-RateLimit-Remaining", "2, 2;w=9"),
        ("X-RateLimit-Limit", "5"),
        ("x-ratelimit-remaining-requests", "3"),
        ("x-ratelimit-remaining-tokens", "77"),
    ]
    loose = dict(
        relayed(
            served,
            (b"x-ratelimit-remaining", b"5000"),
            (b"x-ratelimit-limit", b"6000"),
            (b"x-ratelimit-remaining-requests", b"a lot"),
        )
    )
    assert "x-ratelimit-limit" not in loose
    assert (loose["X-RateLimit-Remaining"], loose["X-RateLimit-Limit"]) == ("98", "100")
    assert loose["x-ratelimit-remaining-requests"] == "98"


def test_an_origins_limit_of_the_same_name_is_not_taken_for_ours() -> None:
    served = chain({"rate_limit": ["a"]}, limits={"a": limit("100/min")})
    rows = relayed(served, (b"ratelimit", b'"a";r=0;t=9'), (b"ratelimit-policy", b'"a";q=5;w=9'))
    for field, theirs, ours in (
        ("ratelimit", ("a", {"r": 0, "t": 9}), ("a@edge", {"r": 99, "t": 1})),
        ("ratelimit-policy", ("a", {"q": 5, "w": 9}), ("a@edge", {"q": 100, "w": 60})),
    ):
        combined = ", ".join(value for name, value in rows if name.lower() == field)
        assert http_sf.parse(combined.encode(), tltype="list") == [theirs, ours]


@pytest.mark.parametrize(
    ("theirs", "limits", "remaining"),
    [
        ([("limit", b"2")], ["2"], []),  # no more is left than that
        ([("limit", b"500")], ["100"], ["99"]),
        ([("limit", b"500"), ("remaining", b"3")], ["500"], ["3"]),
        ([("reset", b"9s")], ["100"], ["99"]),
        ([("limit", b"2"), ("reset", b"9s")], ["2"], []),
    ],
)
def test_of_an_origin_that_says_only_some_fields_of_its_limit_no_line_stands_twice(
    theirs: list[tuple[str, bytes]], limits: list[str], remaining: list[str]
) -> None:
    for end in ("", "-requests"):
        served = chain({"rate_limit": ["a"]}, limits={"a": limit("100/min", headers=ALL)})
        rows = relayed(served, *((f"x-ratelimit-{name}{end}".encode(), value) for name, value in theirs))

        def values(name: str, rows: list[tuple[str, str]] = rows, end: str = end) -> list[str]:
            return [value for field, value in rows if field.lower() == f"x-ratelimit-{name}{end}"]

        assert (values("limit"), values("remaining")) == (limits, remaining)
        assert len(values("reset")) <= 1
