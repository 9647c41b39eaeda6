"""The breakers of a worker: made by the name of their upstream, told to log and metrics, shown to people and ordered.

A breaker outlives every reload by its name; a new table holds from the commit on. What it knows stands in the workers'
common table, so an order that one worker obeys is obeyed by all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final, cast, get_args

from proxy.cells import Cells
from proxy.config import Breaker as BreakerConfig
from proxy.config_routes import ENGINE, ProxyConfig
from proxy.policy import States
from proxy.policy.env import Notify
from proxy.shared.table import SharedTable
from proxy.upstream.breaker import RECORD_SIZE, Breaker, Order
from proxy.upstream.breaker_report import Change
from proxy.upstream.breaker_table import SERVING, Event, State
from proxy.upstream.window import ROW_SIZE

log = logging.getLogger("headrace.proxy")
_STATES: Final = tuple(State)

#: An engine's first tokens wait in its queue, and its other answers come whole: neither says anything of its health.
#: Whether they come in time is judged by ``when`` of model routes.
ENGINE_BREAKER: Final = BreakerConfig(slow=None)


def build_breaker(
    name: str,
    config: BreakerConfig,
    states: States,
    shared: SharedTable,
    cells: Cells,
    notify: Notify | None = None,
) -> Breaker:
    """The breaker of an upstream, as it was left if there is one. Raises ValueError if the common table is full."""
    place = f"breaker {name}"
    return states.get(
        ("breaker", name),
        lambda: Breaker(
            config,
            _teller(name, cells, notify),
            shared.record(place, RECORD_SIZE),
            shared.columns(place, ROW_SIZE),
            os.getpid(),
        ),
    )


def apply_tables(breakers: Mapping[str, Breaker], config: ProxyConfig) -> None:
    """Have breakers decide by the tables of a configuration that is committed."""
    for name, breaker in breakers.items():
        breaker.use(config.upstreams[name].breaker if name != ENGINE else ENGINE_BREAKER)


def show(breaker: Breaker, now: float) -> dict[str, Any]:
    """A breaker as plain JSON values; infinite times are null. next_probe_s: 0 where everything goes, too."""
    view = breaker.view(now)
    row: dict[str, Any] = {
        "state": view.state.value,
        "forced": view.forced,
        "since_s": round(view.since_s, 3) if view.since_s < inf else None,
        "cause": view.cause.value if view.cause is not None else None,
        "requests": view.num_ended,
        "failed": view.num_failed,
        "refused": int(view.sums.refused),
        "first_byte_s": round(view.sums.first_bytes_s / view.sums.answered, 4) if view.sums.answered else None,
    }
    if view.state not in SERVING:
        probes = {
            "given": view.probes_given,
            "in_flight": view.probes_held,
            "good": view.probes_good,
            "failed": view.probes_bad,
        }
        next_s = view.next_probe_s
        row |= {"probes": probes, "next_probe_s": round(next_s, 3) if next_s is not None and next_s < inf else None}
    return row


def watch(breakers: Mapping[str, Breaker], cells: Cells, now: float) -> None:
    """From time to time: let breakers judge without a request, and set the gauges of their states."""
    for name, breaker in breakers.items():
        breaker.look(now)
        doc = "State of an upstream's circuit breaker: 0 closed, 1 warning, 2 degraded, 3 half-open, 4 open."
        gauge = cells.gauge("headrace_breaker_state", doc, {"upstream": name}, combine="max")
        gauge.set(float(_STATES.index(breaker.state)))


def give_order(
    breakers: Mapping[str, Breaker], order: str, names: list[str], for_s: float | None, number: float, now: float
) -> None:
    """Give an order to the breakers of these names; those that are not there are passed over."""
    assert order in get_args(Order)
    for name in names:
        if name in breakers:
            breakers[name].order(cast(Order, order), now, inf if for_s is None else for_s, number)


def _teller(name: str, cells: Cells, notify: Notify | None) -> Callable[[Change], None]:
    counters = {
        state: cells.counter(
            "headrace_breaker_transitions_total",
            "Changes of an upstream's circuit breaker, by the state it went to.",
            {"upstream": name, "to": state.value},
        )
        for state in State
    }

    def tell(change: Change) -> None:
        """What a transition is told to: the metric, the log, and those who follow the box's events."""
        if change.before is not change.after:
            counters[change.after].add()
        level = logging.INFO if change.after is State.CLOSED or change.event is Event.WAITED else logging.WARNING
        text = f"upstream {name}: {spell_change(change)}"
        log.log(level, "%s", text)
        if notify is not None:
            states = {"from": change.before.value, "to": change.after.value, "cause": change.event.value}
            notify({"kind": "breaker", "text": text, "upstream": name, **states})

    return tell


def spell_change(change: Change) -> str:
    """A transition in a line: ``breaker closed -> open: too many failures (12 of 20 requests failed), for 10 s``."""
    event, before, after, sums, open_s = change
    facts = {
        Event.TRIPPED: f" ({sums.bad:.0f} of {sums.good + sums.bad:.0f} requests failed)",
        Event.REFUSED_RUNNING: f" ({sums.bad:.0f} of {sums.good + sums.bad:.0f} requests failed)",
        Event.REFUSING: f" ({sums.refused:.0f} of {sums.good + sums.bad + sums.cooled:.0f})",
    }.get(event, "")
    if event is Event.SLOW and sums.answered:
        facts = f" (after {sums.first_bytes_s / sums.answered:.3f} s in the mean)"
    if after is State.OPEN:
        facts += f", for {open_s:g} s" if open_s < inf else ", until another order"
    return f"breaker {before.value} -> {after.value}: {event.value}{facts}"
