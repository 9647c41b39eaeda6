"""The circuit breaker of an upstream at work: permits, probes, orders. Theory and table: ``breaker_table``. Pure.

Owns the state, a record that all workers share. What each worker counts stands in rows of their own (``window``). While
all is well a request costs a look at the record's version, and no lock: one permit, the same for all, that counts into
this worker's row. Only what may change the state enters the record's lock, looks again there, and publishes the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final, Literal, TypeVar

from proxy.config import Breaker as BreakerConfig
from proxy.shared.columns import Columns, LocalColumns
from proxy.shared.record import LocalRecord, Record
from proxy.upstream.breaker_report import Change, View
from proxy.upstream.breaker_table import (
    PROBE_FAILURES,
    PROBE_SHARE,
    REFUSALS_RUNNING,
    SERVING,
    TRANSITIONS,
    Event,
    State,
    judge,
)
from proxy.upstream.permit import Permit, Probe, Refused
from proxy.upstream.window import ROW_SIZE, Window

HALF_OPEN_RETRY_S: Final = 1.0  # when to come back while a probe is under way

# The record.
_STATE: Final = 0
_GENERATION: Final = 1
_SINCE: Final = 2
_CAUSE: Final = 3
_OPEN_UNTIL: Final = 4
_OPEN_S: Final = 5  # of the open state now or last; 0: it has served since
_GIVEN: Final = 6  # this and the following: since half-open
_ANSWERED: Final = 7  # probes that have freed their place and not ended
_GOOD: Final = 8
_BAD: Final = 9
_PROBED_AT: Final = 10
_FORCED: Final = 11
_ORDERED: Final = 12  # the last order that was obeyed
_REFUSALS: Final = 13  # running, as far as it matters
_CHANGES: Final = 14
_LED_ENDED: Final = 15  # what the window held when it last refused or began to probe
_LED_BAD: Final = 16
RECORD_SIZE: Final = 17

T = TypeVar("T")

_STATES: Final = tuple(State)
_EVENTS: Final = tuple(Event)

Order = Literal["open", "close", "reset"]
_ORDERS: Final[dict[Order, Event]] = {
    "open": Event.FORCED_OPEN,
    "close": Event.FORCED_CLOSED,
    "reset": Event.RESET,
}
_BY_ORDER: Final = tuple(_ORDERS.values())

_HALF_OPEN: Final = State.HALF_OPEN
_OPEN: Final = State.OPEN
_DEGRADED: Final = State.DEGRADED


def _ignore(_change: Change) -> None:
    pass


class Breaker:
    """One worker's end of an upstream's breaker.

    changed: called after every transition that this worker made; each is told once in the box. record, columns: shared
    with the other workers; None: this one is alone. owner: tells this process from those before it, not 0.
    """

    __slots__ = ("_changed", "_config", "_pass", "_record", "_refuses", "_seen", "_slow", "_state", "_untold",
                 "_values", "_window")  # fmt: skip

    def __init__(
        self,
        config: BreakerConfig,
        changed: Callable[[Change], None] | None = None,
        record: Record | None = None,
        columns: Columns | None = None,
        owner: float = 1.0,
    ) -> None:
        self._config = config
        self._slow = inf if config.slow is None else config.slow
        self._changed = changed or _ignore
        self._record: Record = record if record is not None else LocalRecord(RECORD_SIZE)
        self._window = Window(columns if columns is not None else LocalColumns(ROW_SIZE), config, owner)
        self._pass = Permit(self, self._window.generation)
        self._untold: list[Change] = []
        self._seen = -1  # the version of what follows
        self._values: list[float] = []
        self._state = State.CLOSED
        self._refuses = False  # the upstream's last words were refusals
        self._look()

    @property
    def state(self) -> State:
        """As it is now for the whole box."""
        self._look()
        return self._state

    def use(self, config: BreakerConfig) -> None:
        """Decide by this table from now on; the state stays as it is."""
        self._config = config
        self._slow = inf if config.slow is None else config.slow
        self._window.resize(config)

    # What requests ask and tell.

    def admit(self, now: float) -> Permit | Refused:
        """A permit, which must be settled, or a refusal. A waited-out open state turns half-open here."""
        if self._record.version() != self._seen:
            self._look()
        state = self._state
        if state is _HALF_OPEN:
            self._window.arrived()
            if not self._may_probe(now):
                return Refused(HALF_OPEN_RETRY_S)
        elif state is not _OPEN:
            return self._pass
        elif now < self._values[_OPEN_UNTIL]:
            return self._refused(now)
        counted = self._window.generation if state is _HALF_OPEN else -1.0
        return self._change(lambda values, now: self._admit(values, counted, now), now)

    def good(self, generation: float, now: float) -> None:
        """Of a permit: a request has ended well."""
        if self._record.version() != self._seen:
            self._look()
        if generation == self._window.generation:
            began = self._window.good(now)
            if self._refuses:
                self._change(_forget_refusals, now)
            if began:
                self._judge(False, now)

    def harm(self, generation: float, failed: bool, refused: bool, retry_after_s: float, now: float) -> None:
        """Of a permit: the upstream has failed, or refused, or both."""
        self._look()
        if generation != self._window.generation:
            return
        self._window.harm(failed, refused, now)
        if failed and retry_after_s:
            self._window.spare(now + retry_after_s)
        if refused and self._values[_REFUSALS] < REFUSALS_RUNNING:
            self._change(_count_refusal, now)
        elif self._refuses and not refused:
            self._change(_forget_refusals, now)
        self._judge(True, now)

    def first_byte(self, generation: float, first_byte_s: float, now: float) -> None:
        """Of a permit: an answer has begun."""
        if self._record.version() != self._seen:
            self._look()
        if generation == self._window.generation:
            self._window.answered(first_byte_s, now)
            if first_byte_s > self._slow and self._state is not _DEGRADED:
                self._judge(False, now)

    def probe_answered(self, generation: float, now: float) -> None:
        """Of a probe: its place is free."""

        def free(values: list[float], now: float) -> None:
            if generation == values[_GENERATION]:
                self._window.hold(-1.0)
                values[_ANSWERED] += 1.0

        self._change(free, now)

    def probe_ended(
        self, generation: float, holds_place: bool, ok: bool | None, retry_after_s: float, now: float
    ) -> None:
        """Of a probe: it has ended; None: as if it had never been given."""

        def end(values: list[float], now: float) -> None:
            if generation == values[_GENERATION]:
                if holds_place:
                    self._window.hold(-1.0)
                else:
                    values[_ANSWERED] -= 1.0
                if ok is False and retry_after_s:
                    self._window.spare(now + retry_after_s)
                self._count_probe(values, ok, now)

        self._change(end, now)

    # What an operator, a supervisor and a sweep want.

    def order(self, order: Order, now: float, for_s: float = inf, number: float = 0.0) -> None:
        """Do what an operator wants: ``open`` for a time, ``close`` until a reset, ``reset``: forget everything.

        number: an order that every worker is given has one, higher than the last, and is obeyed once.
        """

        def obey(values: list[float], now: float) -> None:
            if not number or values[_ORDERED] < number:
                values[_ORDERED] = max(number, values[_ORDERED])
                self._go(values, _ORDERS[order], now, for_s)

        self._change(obey, now)

    def reset(self, now: float) -> None:
        """The upstream is a new one: forget everything but an operator's order."""

        def forget(values: list[float], now: float) -> None:
            if not values[_FORCED]:
                self._go(values, Event.RESET, now)

        self._change(forget, now)

    def look(self, now: float) -> None:
        """Judge the window although no request ends: what has made it warn may be over."""
        self._look()
        if self._state is State.WARNING or self._state is _DEGRADED:
            self._judge(False, now)

    def view(self, now: float) -> View:
        """What a person wants to know of it."""
        self._look()
        values, state, sums = self._values, self._state, self._window.sums(now)
        serves, has_changed = state in SERVING, values[_CHANGES] > 0
        next_probe_s = None if serves else max(0.0, values[_OPEN_UNTIL] - now) if state is _OPEN else 0.0
        return View(
            state,
            now - values[_SINCE] if has_changed else inf,
            _EVENTS[int(values[_CAUSE])] if has_changed else None,
            values[_FORCED] > 0,
            sums,
            int(sums.good + sums.bad if serves else values[_LED_ENDED]),
            int(sums.bad if serves else values[_LED_BAD]),
            int(values[_GIVEN]),
            int(self._window.held()),
            int(values[_GOOD]),
            int(values[_BAD]),
            next_probe_s,
        )

    # Within the lock.

    def _change(self, decide: Callable[[list[float], float], T], now: float) -> T:
        record = self._record
        values = record.begin()
        try:
            self._adopt(values)
            self._seen = record.version() + 1  # of what is committed below, which is then known
            decided = decide(values, now)
        except BaseException:
            self._seen = -1
            record.cancel()
            raise
        record.commit(values)
        if self._untold:
            untold, self._untold = self._untold, []
            for change in untold:
                self._changed(change)
        return decided

    def _may_probe(self, now: float) -> bool:
        """Whether half-open may give a probe, or end. Without the lock this is a guess that is asked again within it;
        what it denies was true a moment ago, and the sum of the arrivals only grows."""
        values, config, window = self._values, self._config, self._window
        if (values[_ANSWERED] or values[_GOOD]) and now - values[_SINCE] >= config.open:
            return True
        if now - values[_PROBED_AT] >= config.max_open:
            return True
        return values[_GIVEN] + 1.0 <= max(1.0, PROBE_SHARE * window.arrivals()) and window.held() < config.probes

    def _admit(self, values: list[float], counted: float, now: float) -> Permit | Refused:
        """counted: the generation in which this arrival was counted already."""
        config, window = self._config, self._window
        if self._state is _OPEN:
            if now < values[_OPEN_UNTIL]:
                return self._refused(now)
            self._go(values, Event.WAITED, now)
        elif self._state is _HALF_OPEN:
            if (values[_ANSWERED] or values[_GOOD]) and now - values[_SINCE] >= config.open:
                self._go(values, Event.PROBES_PASSED, now)
            elif window.held() and now - values[_PROBED_AT] >= config.max_open:
                self._go(values, Event.PROBE_LOST, now)
        if self._state is not _HALF_OPEN:
            return self._pass
        if window.generation != counted:
            window.arrived()
        if values[_GIVEN] + 1.0 > max(1.0, PROBE_SHARE * window.arrivals()) or window.held() >= config.probes:
            return Refused(HALF_OPEN_RETRY_S)
        values[_GIVEN] += 1.0
        values[_PROBED_AT] = now
        window.hold(1.0)
        return Probe(self, values[_GENERATION])

    def _count_probe(self, values: list[float], ok: bool | None, now: float) -> None:
        if ok is None:
            values[_GIVEN] -= 1.0
            return
        values[_GOOD if ok else _BAD] += 1.0
        if values[_BAD] > PROBE_FAILURES * (values[_GOOD] + values[_BAD]):
            self._go(values, Event.PROBES_FAILED, now)
        elif values[_GOOD] >= self._config.probes:
            self._go(values, Event.PROBES_PASSED, now)

    def _judge(self, harmed: bool, now: float) -> None:
        """Ask the window what it says; if anything, ask again within the lock, where it counts."""

        def again(values: list[float], now: float) -> None:
            event = self._judgement(harmed, now)
            if event is not None:
                self._go(values, event, now)

        if self._judgement(harmed, now) is not None:
            self._change(again, now)

    def _judgement(self, harmed: bool, now: float) -> Event | None:
        values = self._values
        if values[_FORCED] or self._state not in SERVING:
            return None
        return judge(self._state, self._window.sums(now), values[_REFUSALS], self._config, harmed=harmed)

    def _go(self, values: list[float], event: Event, now: float, for_s: float = inf) -> None:
        before, was_forced, sums = self._state, values[_FORCED], self._window.sums(now)
        after = TRANSITIONS[before, event]
        open_s = 0.0
        if after is _OPEN:
            open_s = for_s if event is Event.FORCED_OPEN else self._open_s(values, now)
            values[_OPEN_S] = 0.0 if event is Event.FORCED_OPEN else min(open_s, self._longest_s)
            values[_OPEN_UNTIL] = now + open_s
        elif after is _HALF_OPEN:
            for at in (_GIVEN, _ANSWERED, _GOOD, _BAD):
                values[at] = 0.0
            values[_PROBED_AT] = now
        elif after is State.CLOSED:
            values[_OPEN_S] = 0.0
        if before in SERVING and after not in SERVING:
            values[_LED_ENDED], values[_LED_BAD] = sums.good + sums.bad, sums.bad
        if before not in SERVING or after not in SERVING or event in _BY_ORDER:
            values[_GENERATION] += 1.0
            values[_REFUSALS] = 0.0
        values[_STATE] = float(_STATES.index(after))
        values[_CAUSE] = float(_EVENTS.index(event))
        values[_FORCED] = float(event is Event.FORCED_OPEN or event is Event.FORCED_CLOSED)
        values[_SINCE] = now
        values[_CHANGES] += 1.0
        self._adopt(values)
        if event is not Event.RESET or before is not after or was_forced:
            self._untold.append(Change(event, before, after, sums, open_s))

    @property
    def _longest_s(self) -> float:
        return max(self._config.max_open, self._config.open)

    def _open_s(self, values: list[float], now: float) -> float:
        """Twice the time before it while probes fail, and not before the upstream wants to be asked again."""
        open_s = max(self._config.open, 2.0 * values[_OPEN_S])
        return min(max(open_s, self._window.spared_until() - now), self._longest_s)

    # What is known of the record.

    def _look(self) -> None:
        version = self._record.version()  # before the values: these may be newer, and are looked at again
        if version != self._seen:
            self._adopt(self._record.load())
            self._seen = version

    def _adopt(self, values: list[float]) -> None:
        self._values = values
        self._state = _STATES[int(values[_STATE])]
        self._refuses = values[_REFUSALS] > 0
        if values[_GENERATION] != self._window.generation:
            self._window.begin(values[_GENERATION])
            self._pass = Permit(self, values[_GENERATION])

    def _refused(self, now: float) -> Refused:
        wait_s = self._values[_OPEN_UNTIL] - now
        return Refused(wait_s if wait_s < inf else self._config.open)


def _count_refusal(values: list[float], _now: float) -> None:
    values[_REFUSALS] += 1.0


def _forget_refusals(values: list[float], _now: float) -> None:
    values[_REFUSALS] = 0.0
