"""A limit's memory in the shared table by GCRA: what every key has used of it, counted exactly by all workers.

A decision reads one number and, if the request passes, stores one, in the lock of the key's stripe. What concerns more
than one key's number (a key that is new, a limit that a reload changed, several limits at once) has all stripes.

Memory is bounded. When a key finds every slot of its window taken, one whose bucket is full again makes room. While
there is none, new keys share one common bucket, and a key that finds room afterwards starts with what the common one
has used: no key is ever forgiven to make room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from proxy.gcra import EPSILON, Terms
from proxy.shared.key_slots import KeySlots
from proxy.shared.layout import LIMIT_HEAD_WORDS, WINDOW, Memory
from proxy.shared.limit_memory import LimitMemory
from proxy.shared.locks import LIMIT_STRIPES, LIMITS_DONE, STRIPE_MASK, Locks
from proxy.shared.places import Lease

_HEAD_START_S: Final = (
    60.0  # what the clock reads at first: whoever took the time a little earlier still finds 0 in the past
)
_COMMON: Final = 7  # word of a limit's head: when the common bucket is full again


class SharedLimit(LimitMemory):
    """One limit under a snapshot's terms, over numbers that outlive the snapshot and the worker.

    The clock's pace is shared, too: it is that of the terms under which somebody decided last.
    """

    __slots__ = (
        "_clock",
        "_common_at",
        "_doubles",
        "_lease",
        "_num_values",
        "_pace",
        "_pace_at",
        "_pace_known",
        "_read_at",
        "_slots",
        "_to_value",
        "_words",
    )

    def __init__(
        self, terms: Terms, memory: Memory, locks: Locks, lease: Lease, name: str, before: LimitMemory | None = None
    ) -> None:
        super().__init__(terms, locks, before)
        layout = memory.layout
        at = layout.limits + lease.index * layout.limit_bytes
        self._lease = lease
        self._words = memory.words
        self._doubles = memory.doubles
        self._slots = KeySlots(memory, at + 8 * LIMIT_HEAD_WORDS, layout.geometry.keys, name)
        self._to_value = layout.limit_values // 8 - LIMIT_HEAD_WORDS  # from a digest's index to its number's
        self._pace_at = at // 8
        self._common_at = at // 8 + _COMMON
        self._num_values = layout.geometry.keys + WINDOW
        self._pace_known = 0
        self._clock = self._read_at = self._pace = 0.0  # units, at this time, that many units per second

    def decide(self, key: str, now: float, cost: float = 1.0) -> float:
        at, digest = self._slots.find(key)
        if at and self._before is None:
            self._locks.enter(LIMIT_STRIPES[digest & STRIPE_MASK])
            try:
                if self._words[self._pace_at] != self._pace_known:
                    self._read_pace()
                if self._words[at] == digest and self._pace == self.rate:
                    clock = self._clock + (now - self._read_at) * self._pace
                    value_at = at + self._to_value
                    used = self._doubles[value_at] - clock
                    if used < 0.0:
                        used = 0.0
                    if used + cost > self.burst + EPSILON:
                        return -1.0 - used
                    used += cost
                    self._doubles[value_at] = clock + used
                    return used
            finally:
                self._locks.leave(LIMITS_DONE)
        return decide_together([(self, key)], now, (cost,))[0]

    def adjust(self, key: str, by: float, now: float, debt: float = 1.0) -> float:
        at, digest = self._slots.find(key)
        if at and self._before is None:
            self._locks.enter(LIMIT_STRIPES[digest & STRIPE_MASK])
            try:
                if self._words[self._pace_at] != self._pace_known:
                    self._read_pace()
                if self._words[at] == digest and self._pace == self.rate:
                    clock = self._clock + (now - self._read_at) * self._pace
                    value_at = at + self._to_value
                    used = max(0.0, self._doubles[value_at] - clock)
                    used = max(0.0, used + self.within_debt(by, used, debt))
                    self._doubles[value_at] = clock + used
                    return used
            finally:
                self._locks.leave(LIMITS_DONE)
        return self.adjust_anew(key, by, now, debt)

    def used(self, key: str, now: float) -> float:
        clock = self._clock_at(now)
        at, digest = self._slots.find(key)
        if not at or self._words[at] != digest:
            at, _ = self._slots.look_up(key)
        used = self._doubles[at + self._to_value if at else self._common_at] - clock
        used = used if used > 0.0 else 0.0
        return used if self._before is None else used + self._before.used(key, now)

    def used_in(self, key: str, wait_s: float, now: float) -> float:
        before = self._before.used(key, now) if self._before is not None else 0.0
        return max(0.0, self.used(key, now) - before - self.rate * wait_s)

    def idle(self, now: float) -> bool:
        clock = self._clock_at(now)
        begin = self._pace_at + LIMIT_HEAD_WORDS + self._to_value
        values = list(self._doubles[begin : begin + self._num_values])
        return max(values) <= clock and self._doubles[self._common_at] <= clock

    def take(self, key: str, used: float, now: float, cost: float = 1.0) -> float:
        clock = self._clock_at(now)
        at, digest = self._slots.find(key)
        before = self._before.used(key, now) if self._before is not None else 0.0
        used = max(0.0, used - before + cost)
        if not at:
            at = self._free_slot(digest, clock)
            if not at:
                self._doubles[self._common_at] = clock + used
                return used + before
            # Killed between the stores, it leaves an empty slot.
            self._words[at] = 0
            self._doubles[at + self._to_value] = clock + used
            self._words[at] = digest
            self._slots.stands(key, at, digest)
        else:
            self._doubles[at + self._to_value] = clock + used
        return used + before

    def _free_slot(self, digest: int, clock: float) -> int:
        """A slot that is empty, else one whose key's bucket is full again; 0: there is none."""
        first, standing = self._slots.window(digest)
        if 0 in standing:
            return first + standing.index(0)
        values_at = first + self._to_value
        values = list(self._doubles[values_at : values_at + len(standing)])
        return next((first + i for i, full_at in enumerate(values) if full_at <= clock), 0)

    def _clock_at(self, now: float) -> float:
        """The clock's reading, at our pace from now on."""
        if self._words[self._pace_at] != self._pace_known:
            self._read_pace()
        if self._pace != self.rate:
            self._change_pace(now)
        return self._clock + (now - self._read_at) * self._pace

    def _read_pace(self) -> None:
        self._pace_known = self._words[self._pace_at]
        copy_at = self._pace_at + 1 + 3 * (self._pace_known % 2)
        self._clock, self._read_at, self._pace = self._doubles[copy_at : copy_at + 3]

    def _change_pace(self, now: float) -> None:
        """Every key keeps what it has used: the clock goes on from where it is."""
        clock = self._clock + (now - self._read_at) * self._pace if self._pace else self.rate * _HEAD_START_S
        num_changes = self._pace_known + 1
        copy_at = self._pace_at + 1 + 3 * (num_changes % 2)
        self._doubles[copy_at], self._doubles[copy_at + 1], self._doubles[copy_at + 2] = clock, now, self.rate
        self._words[self._pace_at] = num_changes
        self._read_pace()


def decide_together(asked: Sequence[tuple[LimitMemory, str]], now: float, costs: Sequence[float] = ()) -> list[float]:
    """Count one request under each limit's key if it fits under all: what each key has used then. Else nothing is
    counted, and each is -1 less what its key has used. costs: of each; none: 1 of each."""
    held = asked[0][0]
    costs = costs or [1.0] * len(asked)
    for limit, _ in asked:
        limit.let_before_go(now)
    held.enter_all()
    try:
        standing = [limit.used(key, now) for limit, key in asked]
        if all(limit.fits(used, cost) for (limit, _), used, cost in zip(asked, standing, costs, strict=True)):
            counted = zip(asked, standing, costs, strict=True)
            return [limit.take(key, used, now, cost) for (limit, key), used, cost in counted]
        return [-1.0 - used for used in standing]
    finally:
        held.leave_all()
