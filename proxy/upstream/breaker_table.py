"""The circuit breaker of an upstream as one table, and what leads from state to state. Pure.

Theory. A breaker spares an upstream that fails, and its clients the wait for another failure. One breaker stands before
all servers of an upstream, for all workers of the box. What it hears of a request is a failure (no connection, a 5xx,
no first byte in time, an answer that breaks off), a refusal (429 or 503: the upstream takes no more now), the time to
the first byte, or nothing at all: a client that left says nothing. Of a language model's stream it is the first token
that must come in time and whose time is taken; it fails, or refuses, where an event says so, too. All of it is counted
in a sliding window, and a window with fewer than ``min_requests`` decides nothing.

Three states serve everything and differ only in what they tell. **Closed**: all is well. **Warning**: a fifth of the
requests is refused; an event, a metric, a line in the log. **Degraded**: first bytes come later than ``slow`` in the
mean; a route may send new work elsewhere. Each is left for a better one below four fifths of what it was entered by, so
that it does not flutter. A degraded upstream is asked little, so whatever answered in the window is evidence there, and
only one that nobody asked for a whole window is taken for well again.

**Open**, every request is refused until the open time has passed; the next arrival finds the breaker **half-open**. It
opens when the failed share of the window reaches ``failures``. An upstream that refuses and fails, three refusals
running and over 15 % failures, is overloaded rather than dead: it goes to half-open at once. Its refusals are not among
these failures, or who sheds what is too much for it and serves the rest would be cut off for it; and they must be as
many as it takes to warn, or three running are mere chance wherever thousands are asked. Half-open, a few requests
are probes and the rest is refused: at most ``probes`` in flight, and no more than max(1, 5 % of the arrivals since
half-open) are ever given, under any concurrency, because a probe is a permit and not a state. As many good probes as
``probes`` close it; when more than 30 % of those that ended failed, it opens for twice the time, up to ``max_open``. A
503 that says when to come back is not asked before, within ``max_open``.

Honest ends. Every permit carries the generation it was given in, and every way out of serving, out of open and out of
half-open begins a new one, so that a late result never speaks for a state it did not see. Half-open always ends: a
probe that answers for hours (a stream) frees its place at its first byte, though it is judged at its end; an answering
or a good probe closes the breaker once half-open has lasted one open time, however few requests arrive; a probe that is
never heard of again, its worker killed, is given up after ``max_open``.

An operator's word stands above all signals: forced open refuses everything, for a time or until another word; forced
closed admits everything until a reset. Signals of language models (refused tokens, the time to the first token) come
in by the same two doors as all others: ``Permit.settle(refused=...)`` and ``Permit.answered(first_byte_s)``.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from proxy.config import Breaker as BreakerConfig

PROBE_SHARE: Final = 0.05  # of the arrivals since half-open
PROBE_FAILURES: Final = 0.30  # share of the ended probes above which it opens again
WARNING_REFUSALS: Final = 0.20  # share of refused requests from which it warns
REFUSALS_RUNNING: Final = 3  # refusals without another end between them ...
ERRORS_BESIDE_REFUSALS: Final = 0.15  # ... and more than this share of failures that are none: it probes
RELIEF: Final = 0.8  # of what warning and degraded are entered by


class State(Enum):
    CLOSED = "closed"
    WARNING = "warning"
    DEGRADED = "degraded"
    HALF_OPEN = "half-open"
    OPEN = "open"


class Event(Enum):
    """Why it changes, in the words of the log."""

    REFUSING = "many requests are refused"
    SLOW = "first bytes come late"
    RELIEVED = "all is well again"
    REFUSED_RUNNING = "refusals running, and failures"
    TRIPPED = "too many failures"
    WAITED = "the open time has passed"
    PROBES_PASSED = "the probes passed"
    PROBES_FAILED = "the probes failed"
    PROBE_LOST = "a probe was never heard of again"
    FORCED_OPEN = "opened by order"
    FORCED_CLOSED = "closed by order"
    RESET = "reset"


#: The states that let every request through.
SERVING: Final = (State.CLOSED, State.WARNING, State.DEGRADED)

#: What is not in it does not happen.
TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.CLOSED, Event.REFUSING): State.WARNING,
    (State.CLOSED, Event.SLOW): State.DEGRADED,
    (State.CLOSED, Event.REFUSED_RUNNING): State.HALF_OPEN,
    (State.CLOSED, Event.TRIPPED): State.OPEN,
    (State.WARNING, Event.RELIEVED): State.CLOSED,
    (State.WARNING, Event.SLOW): State.DEGRADED,
    (State.WARNING, Event.REFUSED_RUNNING): State.HALF_OPEN,
    (State.WARNING, Event.TRIPPED): State.OPEN,
    (State.DEGRADED, Event.RELIEVED): State.CLOSED,
    (State.DEGRADED, Event.REFUSING): State.WARNING,
    (State.DEGRADED, Event.REFUSED_RUNNING): State.HALF_OPEN,
    (State.DEGRADED, Event.TRIPPED): State.OPEN,
    (State.HALF_OPEN, Event.PROBES_PASSED): State.CLOSED,
    (State.HALF_OPEN, Event.PROBES_FAILED): State.OPEN,
    (State.HALF_OPEN, Event.PROBE_LOST): State.HALF_OPEN,
    (State.OPEN, Event.WAITED): State.HALF_OPEN,
    **{(state, Event.FORCED_OPEN): State.OPEN for state in State},
    **{(state, Event.FORCED_CLOSED): State.CLOSED for state in State},
    **{(state, Event.RESET): State.CLOSED for state in State},
}


class Sums(NamedTuple):
    """What the window holds. cooled: refused and not failed (429); refused: these and the 503 among the failures."""

    good: float = 0.0
    bad: float = 0.0
    cooled: float = 0.0
    refused: float = 0.0
    answered: float = 0.0
    first_bytes_s: float = 0.0


def judge(state: State, sums: Sums, num_refusals: float, config: BreakerConfig, *, harmed: bool) -> Event | None:
    """What the window says to a serving state. num_refusals: running now. harmed: a failure or a refusal has just been
    counted; nothing else opens a breaker, only time."""
    ended = sums.good + sums.bad
    if harmed and sums.bad and ended >= config.min_requests:
        if sums.bad >= config.failures * ended:
            return Event.TRIPPED
        errors = sums.bad - (sums.refused - sums.cooled)
        refuses = sums.refused >= WARNING_REFUSALS * (ended + sums.cooled)
        if num_refusals >= REFUSALS_RUNNING and refuses and errors > ERRORS_BESIDE_REFUSALS * ended:
            return Event.REFUSED_RUNNING
    return _BY_STATE[state, _deserved(state, sums, ended + sums.cooled, config)]


def _deserved(state: State, sums: Sums, asked: float, config: BreakerConfig) -> State:
    if config.slow is not None and sums.answered >= (1 if state is State.DEGRADED else config.min_requests):
        limit_s = config.slow * (RELIEF if state is State.DEGRADED else 1.0)
        if sums.first_bytes_s > limit_s * sums.answered:
            return State.DEGRADED
    if asked >= config.min_requests:
        share = WARNING_REFUSALS * (RELIEF if state is State.WARNING else 1.0)
        if sums.refused >= share * asked:
            return State.WARNING
    return State.CLOSED


_BY_STATE: Final[dict[tuple[State, State], Event | None]] = {
    (before, after): None if before is after else event
    for before in SERVING
    for after, event in (
        (State.CLOSED, Event.RELIEVED),
        (State.WARNING, Event.REFUSING),
        (State.DEGRADED, Event.SLOW),
    )
}
