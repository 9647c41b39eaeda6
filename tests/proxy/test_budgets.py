"""Budgets by key, team, tenant and all: taken before, settled after, in windows of calendars and rolling ones."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.budget_build import build_levels
from proxy.budgets import Budgets, build_budgets
from proxy.cells import Cells
from proxy.config_budgets import Budget
from proxy.exchange import Exchange, Head, Reply
from proxy.keys import KeyEntry
from proxy.policy import PolicyEnv, States
from proxy.shared.table import SharedTable
from tests.proxy.make import exchange

T0 = datetime.fromisoformat("2026-11-30T12:00:00+00:00").timestamp()
HOUR, DAY = 3600.0, 86400.0


def budgets(shared: SharedTable | None = None, **tables: dict[str, Any]) -> Budgets:
    configured = {name: Budget.model_validate_json(json.dumps(table)) for name, table in tables.items()}
    table, cells = shared or SharedTable.alone(), Cells()
    levels = build_levels(configured, table, cells, lambda size: "ff" * size)
    made = build_budgets(PolicyEnv("r", {}, {}, States(), cells, None, shared=table, budgets=levels))
    assert made is not None
    return made


def of(name: str = "k", tenant: str = "", team: str = "", **own: int) -> Exchange:
    entry = KeyEntry(name, "", "", None, tenant, team, budgets=tuple(("b", unit, n) for unit, n in own.items()))
    return exchange(key_id=name, key=entry)


def error(reply: Reply | None) -> dict[str, Any]:
    assert reply is not None
    return dict(json.loads(reply.body))


def fits(made: Budgets, tokens: int, wall: float = T0, x: Exchange | None = None) -> bool:
    """Whether so many tokens are admitted; nothing is settled."""
    return made.admit(x or of(), tokens, 0.0, wall) is None


def test_what_was_taken_is_settled_by_what_was_used() -> None:
    made = budgets(b={"tokens": 1000, "requests": 3})
    x = of()
    assert made.admit(x, 900, 0.0, T0) is None
    assert not fits(made, 101)
    made.settle(x, 200, 5.0)
    made.settle(x, 200, 5.0)  # once
    assert fits(made, 800)
    assert not fits(made, 1)
    assert fits(made, 1, x=of("other"))  # it has a budget of its own


def test_a_request_that_used_nothing_is_not_counted() -> None:
    made = budgets(b={"requests": 1})
    x = of()
    assert made.admit(x, 5, 0.0, T0) is None
    assert not fits(made, 5)
    made.settle(x, 0, 0.0)
    assert fits(made, 5)


def test_what_was_used_beyond_is_owed_until_the_window_ends() -> None:
    made = budgets(b={"tokens": 100, "per": "day"})
    x = of()
    assert made.admit(x, 10, 0.0, T0) is None
    made.settle(x, 5000, 0.0)
    assert not fits(made, 1, T0 + 11.9 * HOUR)
    assert fits(made, 100, T0 + 12 * HOUR)


def test_all_levels_must_have_room_and_none_is_charged_by_a_refusal() -> None:
    made = budgets(
        mine={"tokens": 100},
        team={"key": "team", "tokens": 150},
        tenant={"key": "tenant", "tokens": 180},
        box={"key": "all", "tokens": 1000},
    )
    a, b, c = (of("a", "acme", "x"), of("b", "acme", "x"), of("c", "acme", "y"))
    assert made.admit(a, 90, 0.0, T0) is None
    reply = made.admit(b, 90, 0.0, T0)  # the team has 60 left
    assert reply is not None
    assert error(reply)["violated-policies"] == ["team"]
    assert made.admit(c, 90, 0.0, T0) is None  # of another team
    reply = made.admit(of("b", "acme", "x"), 10, 0.0, T0)
    assert (
        "the budget tenant of its tenant: 180 tokens in the month from 2026-11-01T00:00:00+00:00 on"
        in error(reply)["detail"]
    )
    assert made.admit(of("d", "beta", "x"), 100, 0.0, T0) is None  # a team is its tenant's own


def test_a_refusal_is_openais_and_says_when_to_come_back() -> None:
    made = budgets(b={"tokens": 100, "per": "month", "time_zone": "Europe/Berlin"})
    assert fits(made, 100)
    reply = made.admit(of(), 1, 0.0, T0)
    assert reply is not None
    assert reply.status == 429
    assert error(reply)["code"] == "insufficient_quota"
    assert dict(reply.headers)[b"Retry-After"] == b"%d" % (11 * HOUR)  # midnight of Berlin is at 23:00
    detail = error(reply)["detail"]
    assert "0 are left of the budget b of this API key: 100 tokens in the month from 2026-11-01T00:00" in detail


def test_those_who_share_a_budget_come_back_at_different_times() -> None:
    made = budgets(b={"key": "all", "tokens": 100, "per": "day"})
    assert fits(made, 100)
    reply = made.admit(of(), 1, 0.0, T0)
    assert reply is not None
    assert 12 * HOUR <= int(dict(reply.headers)[b"Retry-After"]) <= 12 * HOUR + 60


def test_what_never_fits_is_said_so_and_not_to_be_tried_again() -> None:
    made = budgets(b={"tokens": 100})
    reply = made.admit(of(), 101, 0.0, T0)
    assert reply is not None
    assert b"Retry-After" not in dict(reply.headers)
    assert error(reply)["detail"].startswith("This request needs 101 tokens, more than the budget b of this API key")


def test_one_request_is_one() -> None:
    made = budgets(b={"requests": 1})
    assert fits(made, 1)
    detail = error(made.admit(of(), 1, 0.0, T0))["detail"]
    assert detail.startswith(
        "This request needs 1 request, and 0 are left of the budget b of this API key: 1 request in"
    )


@pytest.mark.parametrize(
    ("table", "until_s"),
    [({"per": "day"}, 12 * HOUR), ({"per": "hour"}, HOUR), ({"per": "day", "window": "rolling"}, DAY)],
)
def test_RateLimit_of_what_never_fits_tells_when_the_window_ends(table: dict[str, Any], until_s: float) -> None:
    made, x = budgets(b={"tokens": 100, **table}), of()
    assert made.admit(x, 101, 0.0, T0) is not None
    head = Head(429, [])
    made.respond(x, head, 0.0)
    assert head.get(b"ratelimit") == b'"b.tokens";r=100;t=%d' % until_s


def test_the_keys_file_gives_a_key_amounts_of_its_own() -> None:
    made = budgets(b={"tokens": 100, "requests": 2})
    rich = of("rich", tokens=1000)
    assert made.admit(rich, 1000, 0.0, T0) is None
    assert not fits(made, 101, x=of("poor"))
    head = Head(200, [])
    made.respond(rich, head, 0.0)
    fields = {name.decode(): value for name, value in head.headers}
    policies = http_sf.parse(fields["RateLimit-Policy"], tltype="list")
    assert policies == [
        ("b", {"q": 2, "w": 30 * 86400}),
        ("b.tokens", {"q": 1000, "w": 30 * 86400, "qu": "tokens"}),
    ]
    left = http_sf.parse(fields["RateLimit"], tltype="list")
    assert left == [("b", {"r": 1, "t": 12 * 3600}), ("b.tokens", {"r": 0, "t": 12 * 3600})]


def test_an_origins_item_of_the_same_name_stays_its_own() -> None:
    made = budgets(b={"tokens": 100})
    x = of()
    made.admit(x, 1, 0.0, T0)
    head = Head(200, [(b"RateLimit", b'"b.tokens";r=5;t=1')])
    made.respond(x, head, 0.0)
    assert head.headers[-1][1].startswith(b'"b.tokens@edge";r=99')


def test_requests_without_a_key_share_one_budget() -> None:
    made = budgets(b={"tokens": 100})
    assert fits(made, 60, x=exchange())
    assert not fits(made, 60, x=exchange(peer="198.51.100.1"))


def test_a_calendars_window_begins_anew_and_a_late_answer_counts_where_it_began() -> None:
    made = budgets(b={"tokens": 100, "per": "hour"})
    x = of()
    before = T0 + HOUR - 1
    assert made.admit(x, 60, 0.0, before) is None
    assert not fits(made, 60, before)
    assert fits(made, 90, T0 + HOUR)
    made.settle(x, 100, 0.0)
    assert fits(made, 10, T0 + HOUR)  # the hour before is over


def test_two_workers_clocks_may_differ_where_a_window_ends() -> None:
    made = budgets(b={"tokens": 100, "per": "hour"})
    assert fits(made, 60, T0 + HOUR)
    assert not fits(made, 60, T0 + HOUR - 0.001)
    assert fits(made, 40, T0 + HOUR)
    assert not fits(made, 1, T0 + HOUR)


@pytest.mark.parametrize("window", ["calendar", "rolling"])
def test_a_clock_that_was_far_ahead_does_not_hold_a_budget_for_ever(window: str) -> None:
    made = budgets(b={"tokens": 100, "per": "hour", "window": window})
    assert fits(made, 100, T0 + 400 * DAY)
    assert fits(made, 100, T0)


def test_a_rolling_window_gives_back_where_it_was_taken() -> None:
    made = budgets(b={"tokens": 1000, "per": "hour", "window": "rolling"})
    for minute in range(600):  # ten hours of requests that reserve 300 and use 10: 600 in any hour
        x = of()
        assert made.admit(x, 300, 0.0, T0 + 60 * minute) is None, minute
        made.settle(x, 10, 0.0)
    x = of()
    assert made.admit(x, 1000, 0.0, T0 + 600 * 60) is not None
    assert made.admit(x, 340, 0.0, T0 + 600 * 60) is None


@given(
    st.lists(st.tuples(st.floats(min_value=0.0, max_value=600.0), st.integers(1, 60)), min_size=1, max_size=40),
    st.integers(1, 100),
)
def test_who_comes_back_when_told_is_admitted(rows: list[tuple[float, int]], wanted: int) -> None:
    made = budgets(b={"tokens": 100, "per": "hour", "window": "rolling"})
    wall = T0
    for after, taken in rows:
        wall += after
        made.admit(of(), taken, 0.0, wall)
    reply = made.admit(of(), wanted, 0.0, wall)
    if reply is not None:
        wait_s = int(dict(reply.headers)[b"Retry-After"])
        assert 1 <= wait_s <= HOUR * (1 + 1 / 14 + 1 / 128)
        assert made.admit(of(), wanted, 0.0, wall + wait_s) is None


events = st.lists(
    st.tuples(
        st.floats(min_value=0.0, max_value=2000.0),  # seconds after the one before
        st.integers(min_value=1, max_value=60),  # tokens taken
        st.integers(min_value=0, max_value=60),  # tokens used, of those taken at most
        st.sampled_from("ab"),
    ),
    max_size=120,
)


@given(events)
def test_a_rolling_window_never_exceeds(rows: list[tuple[float, int, int, str]]) -> None:
    made = budgets(b={"tokens": 100, "per": "hour", "window": "rolling"})
    wall = T0
    used: dict[str, list[tuple[float, int]]] = {"a": [], "b": []}
    for after, taken, settled, key in rows:
        wall += after
        x = of(key)
        if made.admit(x, taken, 0.0, wall) is None:
            used[key].append((wall, min(settled, taken)))
            made.settle(x, min(settled, taken), 0.0)
            assert sum(n for at, n in used[key] if at > wall - HOUR) <= 100
        else:
            # It refuses for no more than a fourteenth and a little of the window too long.
            counting = sum(n for at, n in used[key] if at > wall - HOUR * (1 + 1 / 14 + 1 / 128))
            assert counting + taken > 100


@given(
    st.sampled_from(["hour", "day", "month"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu"]),
    st.integers(min_value=0, max_value=4000),
    st.lists(
        st.tuples(st.floats(min_value=0.0, max_value=40 * HOUR), st.integers(1, 60), st.integers(0, 90)), max_size=60
    ),
)
def test_a_calendars_window_admits_what_is_left_exactly(
    per: str, zone: str, day: int, rows: list[tuple[float, int, int]]
) -> None:
    made = budgets(b={"tokens": 100, "per": per, "time_zone": zone})
    level = made._levels[0]
    wall = T0 + day * DAY
    used: dict[float, int] = {}
    for after, taken, settled in rows:
        wall += after
        start = level.window(wall).start
        x = of()
        admitted = made.admit(x, taken, 0.0, wall) is None
        assert admitted == (used.get(start, 0) + taken <= 100)
        if admitted:
            used[start] = used.get(start, 0) + settled
            made.settle(x, settled, 0.0)
