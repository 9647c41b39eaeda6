"""A limit's memory in the shared table by a sliding window: no more than its count in any stretch of its length.

Theory. A key has sixteen buckets, each one word: when something was last counted in it, and how much was. The window is
fourteen of them long. A bucket counts until a whole window after what was last counted in it, so a request is never
forgotten early, and at most a fourteenth of the window late: more than the count is never admitted in any window. A
bucket is told by its time alone, so after a reload with another length the next window goes on with what is still in
it; where a bucket is needed again that still counts, both counts go on in it together.

Memory is bounded, as that of proxy.shared.limit: keys that find no slot share one common row, and nobody is forgiven to
make room.
"""

from __future__ import annotations

from math import ceil, floor, inf
from struct import Struct
from typing import Final

from proxy.gcra import EPSILON, Terms
from proxy.shared.key_slots import KeySlots
from proxy.shared.layout import WINDOW, WINDOW_ROW_WORDS, Memory
from proxy.shared.limit import decide_together
from proxy.shared.limit_memory import LimitMemory
from proxy.shared.locks import LIMIT_STRIPES, LIMITS_DONE, STRIPE_MASK, Locks
from proxy.shared.places import Lease

NUM_BUCKETS: Final = WINDOW_ROW_WORDS - 2  # of a window: one is being filled, one may have just ended
_COUNT_BITS: Final = 30
MAX_COUNT: Final = (1 << _COUNT_BITS) - 1  # of one bucket, and so of a limit
_UNITS_PER_S: Final = 100  # of the time in a word: 34 bits are five years
_ROW: Final = Struct(f"@{WINDOW_ROW_WORDS}Q")


class SlidingLimit(LimitMemory):
    """One limit; ``burst`` is its whole count. Raises ValueError if that is larger than a bucket can hold."""

    __slots__ = ("_common", "_first", "_lease", "_map", "_rows", "_slots", "_width_s", "_window_s", "_words")

    def __init__(
        self, terms: Terms, memory: Memory, locks: Locks, lease: Lease, name: str, before: LimitMemory | None = None
    ) -> None:
        super().__init__(terms, locks, before)
        if terms.burst > MAX_COUNT:
            raise ValueError(f"a sliding window counts to {MAX_COUNT} at most; use gcra")
        layout = memory.layout
        num_keys = layout.geometry.window_keys
        at = layout.windows + lease.index * layout.window_bytes
        self._lease = lease
        self._words = memory.words
        self._map = memory.map
        self._slots = KeySlots(memory, at, num_keys, name)
        self._first = at // 8  # word of the first digest
        self._rows = self._first + num_keys + WINDOW  # of the first row
        self._common = self._rows + (num_keys + WINDOW) * WINDOW_ROW_WORDS
        self._window_s = terms.per_s
        self._width_s = terms.per_s / NUM_BUCKETS

    def decide(self, key: str, now: float, cost: float = 1.0) -> float:
        at, digest = self._slots.find(key)
        if at and self._before is None:
            # As little as possible is reckoned in the lock.
            oldest = self._oldest(now)
            row = self._row_of(at)
            most = self.burst + EPSILON - cost
            self._locks.enter(LIMIT_STRIPES[digest & STRIPE_MASK])
            try:
                if self._words[at] == digest:
                    row_words = _ROW.unpack_from(self._map, 8 * row)
                    used = float(sum([word & MAX_COUNT for word in row_words if word >= oldest]))
                    if used > most:
                        return -1.0 - used
                    self._count(row, int(cost), now)
                    return used + cost
            finally:
                self._locks.leave(LIMITS_DONE)
        return decide_together([(self, key)], now, (cost,))[0]

    def adjust(self, key: str, by: float, now: float, debt: float = 1.0) -> float:
        at, digest = self._slots.find(key)
        if at and self._before is None:
            row = self._row_of(at)
            self._locks.enter(LIMIT_STRIPES[digest & STRIPE_MASK])
            try:
                if self._words[at] == digest:
                    used = float(self._sum(row, now))
                    by = self.within_debt(by, used, debt)
                    if by < 0.0:
                        self._give_back(row, int(-by), now)
                    else:
                        self._count(row, int(by), now)
                    return max(0.0, used + by)
            finally:
                self._locks.leave(LIMITS_DONE)
        return self.adjust_anew(key, by, now, debt)

    def used(self, key: str, now: float) -> float:
        used = float(self._sum(self._find(key), now))
        return used if self._before is None else used + self._before.used(key, now)

    def used_in(self, key: str, wait_s: float, now: float) -> float:
        return float(self._sum(self._find(key), now + wait_s))

    def idle(self, now: float) -> bool:
        oldest = self._oldest(now)
        words = self._words[self._rows : self._common + WINDOW_ROW_WORDS].tolist()
        return max(words) < oldest

    def take(self, key: str, used: float, now: float, cost: float = 1.0) -> float:
        at, digest = self._slots.find(key)
        if cost < 0.0:
            self._give_back(self._find(key), int(-cost), now)
        elif at:
            self._count(self._row_of(at), int(cost), now)
        elif at := self._free_slot(digest, now):
            # Killed between the stores, it leaves an empty slot. It begins with what the common row has.
            self._words[at] = 0
            row = self._row_of(at)
            for i in range(WINDOW_ROW_WORDS):
                self._words[row + i] = self._words[self._common + i]
            self._count(row, int(cost), now)
            self._words[at] = digest
            self._slots.stands(key, at, digest)
        else:
            self._count(self._common, int(cost), now)
        return max(0.0, used + cost)

    def standing(self, cost: float, used: float, since_s: float) -> float:
        return cost if since_s < self._window_s else 0.0

    def wait_of(self, key: str, used: float, now: float, cost: float = 1.0) -> float:
        if self._before is not None:
            return self.wait_of_both(key, now, self.burst - cost)
        return self._wait(self._find(key), used + cost - self.burst, now)

    def reset_of(self, key: str, used: float, now: float, cost: float = 1.0) -> float:
        if self._before is not None:
            return self.reset_of_both(key, used, now, cost)
        row = self._find(key)
        if used + cost > self.burst + EPSILON:
            return self._wait(row, used + cost - self.burst, now)
        words = self._counting(row, now)
        return max(0.0, (max(words) >> _COUNT_BITS) / _UNITS_PER_S + self._window_s - now) if words else 0.0

    def _wait(self, row: int, excess: float, now: float) -> float:
        """Seconds until so much is forgotten, oldest first; inf: never, for it is more than was counted."""
        if excess <= EPSILON:
            return 0.0
        for word in sorted(self._counting(row, now)):
            excess -= word & MAX_COUNT
            if excess <= EPSILON:
                return max(0.0, (word >> _COUNT_BITS) / _UNITS_PER_S + self._window_s - now)
        return inf

    def _find(self, key: str) -> int:
        """The row of a key's own, or the common one."""
        at, digest = self._slots.find(key)
        if not at or self._words[at] != digest:
            at, _ = self._slots.look_up(key)
        return self._row_of(at) if at else self._common

    def _row_of(self, at: int) -> int:
        return self._rows + (at - self._first) * WINDOW_ROW_WORDS

    def _oldest(self, now: float) -> int:
        """The least word that still counts."""
        return (floor((now - self._window_s) * _UNITS_PER_S) + 1) << _COUNT_BITS

    def _counting(self, row: int, now: float) -> list[int]:
        """The words that still count: as numbers they are in the order of their times."""
        oldest = self._oldest(now)
        return [word for word in _ROW.unpack_from(self._map, 8 * row) if word >= oldest and word & MAX_COUNT]

    def _sum(self, row: int, now: float) -> int:
        return sum([word & MAX_COUNT for word in self._counting(row, now)])

    def _count(self, row: int, cost: int, now: float) -> None:
        at = row + int(now / self._width_s) % WINDOW_ROW_WORDS
        word = self._words[at]
        last = ceil(now * _UNITS_PER_S)
        if word >= self._oldest(now):
            last = max(last, word >> _COUNT_BITS)  # another worker may have looked at the clock a moment later
            cost = min(MAX_COUNT, cost + (word & MAX_COUNT))
        self._words[at] = last << _COUNT_BITS | cost

    def _give_back(self, row: int, cost: int, now: float) -> None:
        """Take so much out, of the oldest first: what stays is forgotten no earlier than it would have been."""
        oldest = self._oldest(now)
        standing = sorted([(self._words[row + i], row + i) for i in range(WINDOW_ROW_WORDS)])
        for word, at in standing:
            if word >= oldest and cost > 0:
                less = min(cost, word & MAX_COUNT)
                self._words[at] = word - less
                cost -= less

    def _free_slot(self, digest: int, now: float) -> int:
        """A slot that is empty, else one of whose key nothing counts any more; 0: there is none."""
        first, standing = self._slots.window(digest)
        if 0 in standing:
            return first + standing.index(0)
        return next((first + i for i in range(WINDOW) if not self._sum(self._row_of(first + i), now)), 0)
