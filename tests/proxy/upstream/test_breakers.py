"""The breakers of a worker: kept by name, told, shown and ordered."""

from __future__ import annotations

import json
import logging
from math import inf
from typing import Any

import pytest
from pydantic import ValidationError

from proxy.cells import Cells
from proxy.config import Breaker as BreakerConfig
from proxy.policy import States
from proxy.shared.table import SharedTable
from proxy.upstream.breaker import Breaker
from proxy.upstream.breaker_report import Change
from proxy.upstream.breaker_table import Event, State, Sums
from proxy.upstream.breakers import ENGINE_BREAKER, apply_tables, build_breaker, give_order, show, spell_change, watch
from proxy.upstream.permit import Permit, Refused
from tests.proxy.make import proxy_config

CONFIG = BreakerConfig.model_validate({"min_requests": 2, "open": "10s"})


def built(states: States, cells: Cells, shared: SharedTable, config: BreakerConfig = CONFIG) -> Breaker:
    return build_breaker("app", config, states, shared, cells)


def test_a_breaker_outlives_reloads_by_its_name_and_takes_the_new_table_at_the_commit() -> None:
    states, cells, shared = States(), Cells(), SharedTable.alone()
    breaker = built(states, cells, shared)
    breaker.order("open", 0.0)
    again = built(States(states), cells, shared, CONFIG.model_copy(update={"open": 3.0}))
    assert again is breaker
    assert again.admit(0.0) == Refused(10.0)
    servers = {"servers": ["http://a"], "breaker": {"open": "3s"}}
    apply_tables({"app": again, "engine": Breaker(CONFIG)}, proxy_config(upstreams={"app": servers}))
    assert again.admit(0.0) == Refused(3.0)


def test_a_successor_finds_the_state_in_the_common_table() -> None:
    shared = SharedTable.alone()
    breaker = built(States(), Cells(), shared)
    breaker.order("open", 0.0)
    assert built(States(), Cells(), shared).state is State.OPEN


def test_a_slow_engine_is_never_degraded() -> None:
    breaker = Breaker(ENGINE_BREAKER)
    for _ in range(100):
        given = breaker.admit(0.0)
        assert isinstance(given, Permit)
        given.answered(0.0, 60.0)
    assert breaker.state is State.CLOSED


def test_transitions_are_counted_and_logged_and_the_state_is_a_gauge(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.proxy")
    cells = Cells()
    told: list[dict[str, Any]] = []
    breaker = build_breaker("app", CONFIG, States(), SharedTable.alone(), cells, told.append)
    for ok in (True, False):
        given = breaker.admit(0.0)
        assert isinstance(given, Permit)
        given.settle(ok, 0.0)
    watch({"app": breaker}, cells, 1.0)
    assert cells.gauge("headrace_breaker_state", "", {"upstream": "app"}, combine="max").value == 4.0
    counter = cells.counter("headrace_breaker_transitions_total", "", {"upstream": "app", "to": "open"})
    assert counter.value == 1.0
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "upstream app: breaker closed -> open: too many failures (1 of 2 requests failed), for 10 s")
    ]
    states = {"from": "closed", "to": "open", "cause": "too many failures"}
    assert told == [{"kind": "breaker", "text": caplog.records[0].message, "upstream": "app", **states}]


def test_the_sweep_relieves_an_upstream_that_nobody_asks() -> None:
    breaker = Breaker(CONFIG)
    for _ in range(2):
        given = breaker.admit(0.0)
        assert isinstance(given, Permit)
        given.answered(0.0, 2.0)
    cells = Cells()
    watch({"app": breaker}, cells, 1.0)
    assert cells.gauge("headrace_breaker_state", "", {"upstream": "app"}, combine="max").value == 2.0
    watch({"app": breaker}, cells, 11.0)
    assert cells.gauge("headrace_breaker_state", "", {"upstream": "app"}, combine="max").value == 0.0


@pytest.mark.parametrize(
    ("table", "slow"),
    [({}, 0.8), ({"slow": "1.2s"}, 1.2), ({"slow": None}, None), ({"probes": 100, "open": "1ms"}, 0.8)],
)
def test_a_table(table: dict[str, Any], slow: float | None) -> None:
    upstream = {"servers": ["http://a"], "breaker": table}
    assert proxy_config(upstreams={"app": upstream}).upstreams["app"].breaker.slow == slow


@pytest.mark.parametrize("table", [{"slow": 0.8}, {"slow": "80%"}, {"probes": 0}, {"probes": 101}, {"failures": 0.5}])
def test_a_wrong_table(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        proxy_config(upstreams={"app": {"servers": ["http://a"], "breaker": table}})


SUMS = Sums(good=6, bad=2, cooled=2, refused=3, answered=4, first_bytes_s=6.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((Event.TRIPPED, State.WARNING, State.OPEN),
         "warning -> open: too many failures (2 of 8 requests failed), for 10 s"),
        ((Event.REFUSED_RUNNING, State.CLOSED, State.HALF_OPEN),
         "closed -> half-open: refusals running, and failures (2 of 8 requests failed)"),
        ((Event.REFUSING, State.CLOSED, State.WARNING), "closed -> warning: many requests are refused (3 of 10)"),
        ((Event.SLOW, State.CLOSED, State.DEGRADED),
         "closed -> degraded: first bytes come late (after 1.500 s in the mean)"),
        ((Event.PROBES_PASSED, State.HALF_OPEN, State.CLOSED), "half-open -> closed: the probes passed"),
    ],
)  # fmt: skip
def test_a_transition_in_a_line(change: tuple[Event, State, State], said: str) -> None:
    assert spell_change(Change(*change, SUMS, 10.0)) == f"breaker {said}"


def test_what_is_open_until_another_order_says_so() -> None:
    change = Change(Event.FORCED_OPEN, State.CLOSED, State.OPEN, Sums(), inf)
    assert spell_change(change) == "breaker closed -> open: opened by order, until another order"


def test_a_breaker_is_shown_as_plain_json() -> None:
    breaker = Breaker(CONFIG)
    assert show(breaker, 5.0) == {
        "state": "closed",
        "forced": False,
        "since_s": None,
        "cause": None,
        "requests": 0,
        "failed": 0,
        "refused": 0,
        "first_byte_s": None,
    }
    give_order({"app": breaker}, "open", ["gone", "app"], None, 0.0, 5.0)
    row = show(breaker, 7.0)
    assert (row["state"], row["forced"], row["since_s"], row["next_probe_s"]) == ("open", True, 2.0, None)
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    give_order({"app": breaker}, "open", ["app"], 60.0, 0.0, 7.0)
    assert show(breaker, 8.0)["next_probe_s"] == 59.0
