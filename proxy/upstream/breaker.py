"""A circuit breaker per upstream. Pure: ``now`` is handed in.

Theory. A breaker spares an upstream that fails, and its clients the wait for another failure. **Closed**, every
request passes and its end is counted in a sliding window; when the window holds enough requests and the failed share
reaches the threshold, it trips. **Open**, every request is refused until the open time has passed; the next arrival
finds it **half-open**: a few requests are probes, the rest is refused. A probe is a permit, not a state change: at most
``probes`` are in flight, and no more than max(1, 5 % of the arrivals since half-open) are ever given, under any
concurrency. As many good probes as ``probes`` close it; when more than 30 % of the finished ones failed, it opens
again for twice the time, up to ``max_open``.

Three rules keep it honest. Each permit carries the generation it was given in, and every transition begins a new one,
so a late result never speaks for a state it did not see. A client that left says nothing about the upstream: its permit
is given back uncounted. And half-open always ends: a probe that answers for hours (a stream) frees its place at its
first byte; an answering or a good probe closes the breaker once half-open has lasted one open time, however few
requests arrive; a probe that is never heard of again is given up after ``max_open``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from proxy.config import Breaker as BreakerConfig

PROBE_SHARE = 0.05  # of the arrivals since half-open
PROBE_FAILURES = 0.30  # share of finished probes above which it opens again
NUM_BUCKETS = 10  # the window's memory, whatever the traffic
HALF_OPEN_RETRY_S = 1.0  # when to come back while a probe is under way


class State(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Event(Enum):
    TRIPPED = "too many failures"
    WAITED = "the open time has passed"
    PROBES_PASSED = "the probes passed"
    PROBES_FAILED = "the probes failed"
    PROBE_LOST = "a probe was never heard of again"
    RESET = "reset"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.CLOSED, Event.TRIPPED): State.OPEN,
    (State.OPEN, Event.WAITED): State.HALF_OPEN,
    (State.HALF_OPEN, Event.PROBES_PASSED): State.CLOSED,
    (State.HALF_OPEN, Event.PROBES_FAILED): State.OPEN,
    (State.HALF_OPEN, Event.PROBE_LOST): State.HALF_OPEN,
    (State.CLOSED, Event.RESET): State.CLOSED,
    (State.OPEN, Event.RESET): State.CLOSED,
    (State.HALF_OPEN, Event.RESET): State.CLOSED,
}


class Refused(NamedTuple):
    """The breaker does not let this request through; come back after ``retry_after_s`` seconds."""

    retry_after_s: float


class Permit:
    """One request's pass. ``settle`` exactly one time counts; more do nothing."""

    __slots__ = ("_breaker", "_generation", "_holds_slot", "_settled", "probe")

    def __init__(self, breaker: Breaker, generation: int, probe: bool) -> None:
        self._breaker = breaker
        self._generation = generation
        self._settled = False
        self._holds_slot = probe
        self.probe = probe

    def answered(self, now: float) -> None:
        """The first byte of the answer is there: a probe's place goes to the next one. How it ends is still open."""
        breaker = self._breaker
        if self._holds_slot and self._generation == breaker.generation:
            self._holds_slot = False
            breaker.probes_in_flight -= 1
            breaker.probes_answered += 1

    def settle(self, ok: bool | None, now: float) -> None:
        """The request has ended: True good, False the upstream failed, None not counted (the client left, or it was
        never sent)."""
        if self._settled:
            return
        self._settled = True
        breaker = self._breaker
        if self._generation != breaker.generation:
            return
        if not self.probe:
            if ok is not None:
                breaker.count(ok, now)
            return
        if self._holds_slot:
            breaker.probes_in_flight -= 1
        elif ok is None:
            breaker.probes_answered -= 1
        breaker.count_probe(ok, now)


class Breaker:
    """The state of one upstream's breaker. ``config`` may be replaced by a reload at any time.

    changed: called with (event, state before, state after) on every transition.
    """

    def __init__(self, config: BreakerConfig, changed: Callable[[Event, State, State], None] | None = None) -> None:
        self.config = config
        self.changed = changed
        self.state = State.CLOSED
        self.generation = 0
        self.open_until = 0.0
        self._open_s = 0.0  # of the open state now or last; 0.0: closed since it began well
        self._window = [[-1, 0, 0] for _ in range(NUM_BUCKETS)]  # [tick, good, bad]
        self._half_open_at = self._probed_at = 0.0
        self._arrivals = self._probes_given = self._probes_good = self._probes_bad = 0
        self.probes_in_flight = self.probes_answered = 0

    def admit(self, now: float) -> Permit | Refused:
        """A permit, which must be settled, or a refusal. A waited-out open state turns half-open here."""
        if self.state is State.CLOSED:
            return Permit(self, self.generation, False)
        if self.state is State.OPEN:
            if now < self.open_until:
                return Refused(self.open_until - now)
            self._go(Event.WAITED, now)
        elif (self.probes_answered or self._probes_good) and now - self._half_open_at >= self.config.open:
            self._go(Event.PROBES_PASSED, now)
            return Permit(self, self.generation, False)
        elif self.probes_in_flight and now - self._probed_at >= self.config.max_open:
            self._go(Event.PROBE_LOST, now)
        self._arrivals += 1
        allowed = max(1.0, PROBE_SHARE * self._arrivals)
        if self.probes_in_flight >= self.config.probes or self._probes_given + 1 > allowed:
            return Refused(HALF_OPEN_RETRY_S)
        self._probes_given += 1
        self.probes_in_flight += 1
        self._probed_at = now
        return Permit(self, self.generation, True)

    def count(self, ok: bool, now: float) -> None:
        """Count the end of a request that was let through while closed."""
        width = self.config.window / NUM_BUCKETS
        tick = int(now / width)
        bucket = self._window[tick % NUM_BUCKETS]
        if bucket[0] != tick:
            bucket[:] = (tick, 0, 0)
        bucket[1 if ok else 2] += 1
        if not ok:
            good, bad = self._sums(tick)
            if good + bad >= self.config.min_requests and bad >= self.config.failures * (good + bad):
                self._go(Event.TRIPPED, now)

    def count_probe(self, ok: bool | None, now: float) -> None:
        """Count the end of a probe. One whose client left is as if it had never been given."""
        if ok is None:
            self._probes_given -= 1
            return
        if ok:
            self._probes_good += 1
        else:
            self._probes_bad += 1
        if self._probes_bad > PROBE_FAILURES * (self._probes_good + self._probes_bad):
            self._go(Event.PROBES_FAILED, now)
        elif self._probes_good >= self.config.probes:
            self._go(Event.PROBES_PASSED, now)

    def reset(self, now: float) -> None:
        """Forget everything: closed, with an empty window."""
        self._go(Event.RESET, now)

    def counts(self, now: float) -> tuple[int, int]:
        """(good, bad) ends within the window."""
        return self._sums(int(now / (self.config.window / NUM_BUCKETS)))

    def _sums(self, tick: int) -> tuple[int, int]:
        oldest = tick - NUM_BUCKETS
        good = bad = 0
        for at, num_good, num_bad in self._window:
            if oldest < at <= tick:
                good += num_good
                bad += num_bad
        return good, bad

    def _go(self, event: Event, now: float) -> None:
        before = self.state
        self.state = TRANSITIONS[before, event]
        self.generation += 1
        if self.state is State.OPEN:
            doubled = 2 * self._open_s if event is Event.PROBES_FAILED else self.config.open
            self._open_s = min(doubled, max(self.config.max_open, self.config.open))
            self.open_until = now + self._open_s
        elif self.state is State.HALF_OPEN:
            self._enter_half_open(now)
        else:
            self._window = [[-1, 0, 0] for _ in range(NUM_BUCKETS)]
        if self.changed is not None:
            self.changed(event, before, self.state)

    def _enter_half_open(self, now: float) -> None:
        self._half_open_at = self._probed_at = now
        self._arrivals = self._probes_given = self._probes_good = self._probes_bad = 0
        self.probes_in_flight = self.probes_answered = 0
