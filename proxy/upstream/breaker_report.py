"""What a breaker says of itself: a change, for the log and the metrics, and how it stands, for people. Pure."""

from __future__ import annotations

from typing import NamedTuple

from proxy.upstream.breaker_table import Event, State, Sums


class Change(NamedTuple):
    """A transition, for the log, the metrics and whoever else wants to know. sums: of the window before it. open_s: for
    how long it will refuse; inf: until another order."""

    event: Event
    before: State
    after: State
    sums: Sums
    open_s: float


class View(NamedTuple):
    """The breaker at one moment, for people. since_s: for how long; inf: since it began. num_ended, num_failed: in the
    window, or when it last tripped. next_probe_s: when a probe may go; inf: never by itself; None: everything goes."""

    state: State
    since_s: float
    cause: Event | None
    forced: bool
    sums: Sums
    num_ended: int
    num_failed: int
    probes_given: int
    probes_held: int
    probes_good: int
    probes_bad: int
    next_probe_s: float | None
