"""A budget's memory in the shared table: how much every key has used of it, exact for all workers, by the wall clock.

Theory. A key has sixteen buckets, each one word: a time, and how much was counted. Of a calendar's window one is used,
whose time is the window's begin: with the next window it is void. A rolling window is fourteen of them long, as that of
``proxy.shared.sliding``: a bucket counts until a whole window after what was last counted in it, so nothing is ever
forgotten early, and at most a fourteenth of the window late. What was counted is corrected in its own bucket, however
much later, so that corrections do not move it in time.

Each change is one store: a process killed at any moment leaves whole numbers. Memory is bounded, as that of
``proxy.shared.limit``: keys that find no slot share one common row, and nobody is forgiven to make room.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, inf
from struct import Struct
from typing import Final

from proxy.shared.key_slots import KeySlots
from proxy.shared.layout import BUDGETS_LOCK, WINDOW, WINDOW_ROW_WORDS, Memory, locking, unlocking
from proxy.shared.locks import Locks
from proxy.shared.places import Lease

NUM_BUCKETS: Final = WINDOW_ROW_WORDS - 2  # of a rolling window: one is being filled, one may have just ended
_COUNT_BITS: Final = 36
MAX_COUNT: Final = (1 << _COUNT_BITS) - 1  # of one bucket, and so of a budget
_CALENDAR_UNIT_S: Final = 900.0  # all time zones are whole quarters of an hour apart
_ROLLING_UNITS: Final = 256  # of time in a rolling window
_AHEAD_S: Final = 32 * 86400.0  # a time further ahead is a clock's that was wrong
_LOCK, _DONE = locking(BUDGETS_LOCK), unlocking(BUDGETS_LOCK)
_ROW: Final = Struct(f"@{WINDOW_ROW_WORDS}Q")


class BudgetMemory:
    """One budget. rolling_s: the length of its window; 0.0: a calendar's, and ``start`` says which.

    All that is asked is asked between ``enter_all`` and ``leave_all``. wall: Unix time; start: when the calendar's
    window began that it is in.
    """

    __slots__ = ("_common", "_first", "_lease", "_locks", "_map", "_rolling_s", "_rows", "_slots", "_unit_s", "_words")

    def __init__(self, rolling_s: float, memory: Memory, locks: Locks, lease: Lease, name: str) -> None:
        layout = memory.layout
        num_keys = layout.geometry.window_keys
        at = layout.windows + lease.index * layout.window_bytes
        self._lease = lease
        self._locks = locks
        self._words = memory.words
        self._map = memory.map
        self._slots = KeySlots(memory, at, num_keys, name)
        self._first = at // 8  # word of the first digest
        self._rows = self._first + num_keys + WINDOW  # of the first row
        self._common = self._rows + (num_keys + WINDOW) * WINDOW_ROW_WORDS
        self._rolling_s = rolling_s
        self._unit_s = rolling_s / _ROLLING_UNITS if rolling_s else _CALENDAR_UNIT_S

    def enter_all(self) -> None:
        """Have the numbers of all budgets to oneself: a request asks several, and takes of all or none."""
        self._locks.enter(_LOCK)

    def leave_all(self) -> None:
        """The end of ``enter_all``."""
        self._locks.leave(_DONE)

    def used(self, key: str, wall: float, start: float) -> int:
        """What ``key`` has used and that still counts."""
        row = self._find(key)
        if not self._rolling_s:
            return self._words[row] & MAX_COUNT if self._is_current(row, start) else 0
        return sum([word & MAX_COUNT for word in self._counting(row, wall, start)])

    def take(self, key: str, cost: int, wall: float, start: float) -> None:
        """Count ``cost`` for ``key``."""
        at, digest = self._slots.find(key)
        if not at or self._words[at] != digest:
            at, digest = self._slots.look_up(key)
        if at:
            self._count(self._row_of(at), cost, wall, start)
        elif at := self._free_slot(digest, wall, start):
            # Killed between the stores, it leaves an empty slot. It begins with what the common row has.
            self._words[at] = 0
            row = self._row_of(at)
            for i in range(WINDOW_ROW_WORDS):
                self._words[row + i] = self._words[self._common + i]
            self._count(row, cost, wall, start)
            self._words[at] = digest
            self._slots.stands(key, at, digest)
        else:
            self._count(self._common, cost, wall, start)

    def correct(self, key: str, by: int, wall: float, start: float) -> None:
        """Count so much more, or less, of what was taken at ``wall``; what is forgotten meanwhile stays so."""
        at = self._bucket(self._find(key), wall)
        word = self._words[at]
        time = word >> _COUNT_BITS
        if self._rolling_s:
            is_same = abs(time * self._unit_s - wall) < self._rolling_s / 2
        else:
            is_same = time == int(start / self._unit_s)
        if is_same:
            self._words[at] = time << _COUNT_BITS | min(MAX_COUNT, max(0, (word & MAX_COUNT) + by))

    def wait_s(self, key: str, excess: int, wall: float, start: float) -> float:
        """Seconds until so much is forgotten of a rolling window, the oldest first; inf: never."""
        for word in sorted(self._counting(self._find(key), wall, start)):
            excess -= word & MAX_COUNT
            if excess <= 0:
                return max(0.0, (word >> _COUNT_BITS) * self._unit_s + self._rolling_s - wall)
        return inf

    def replace(self, key: str, counts: Iterable[tuple[float, int]], wall: float, start: float) -> None:
        """Have ``key`` begin with what is known of it from elsewhere: (when it was last counted, how much), oldest
        first. Again with the same, it changes nothing; nobody else counts meanwhile."""
        self.take(key, 0, wall, start)
        row = self._find(key)
        if row != self._common:
            for i in range(WINDOW_ROW_WORDS):
                self._words[row + i] = 0
        for at, count in counts:
            self._count(row, count, at, start)

    def _counting(self, row: int, wall: float, start: float) -> list[int]:
        """The words that count: as numbers they are in the order of their times."""
        if not self._rolling_s:
            return [self._words[row]] if self._is_current(row, start) and self._words[row] & MAX_COUNT else []
        oldest, newest = self._bounds(wall)
        words = _ROW.unpack_from(self._map, 8 * row)
        return [word for word in words if oldest <= word < newest and word & MAX_COUNT]

    def _bounds(self, wall: float) -> tuple[int, int]:
        """The least word of a rolling window that counts, and the least one beyond those that do."""
        oldest = (floor((wall - self._rolling_s) / self._unit_s) + 1) << _COUNT_BITS
        return oldest, ceil((wall + _AHEAD_S) / self._unit_s) << _COUNT_BITS

    def _is_current(self, row: int, start: float) -> bool:
        """Whether a calendar's word is of this window, or of the next one, which another worker has seen begin."""
        ahead_s = (self._words[row] >> _COUNT_BITS) * self._unit_s - start
        return -self._unit_s < ahead_s < _AHEAD_S

    def _count(self, row: int, cost: int, wall: float, start: float) -> None:
        at = self._bucket(row, wall)
        word = self._words[at]
        if self._rolling_s:
            oldest, newest = self._bounds(wall)
            time, counts = ceil(wall / self._unit_s), oldest <= word < newest and word & MAX_COUNT > 0
        else:
            time, counts = int(start / self._unit_s), self._is_current(row, start)
        if counts:
            # Another worker may have looked at the clock a moment later, or seen the next window begin.
            time = max(time, word >> _COUNT_BITS)
            cost = min(MAX_COUNT, cost + (word & MAX_COUNT))
        self._words[at] = time << _COUNT_BITS | cost

    def _bucket(self, row: int, wall: float) -> int:
        if not self._rolling_s:
            return row
        return row + int(wall * NUM_BUCKETS / self._rolling_s) % WINDOW_ROW_WORDS

    def _find(self, key: str) -> int:
        """The row of a key's own, or the common one."""
        at, digest = self._slots.find(key)
        if not at or self._words[at] != digest:
            at, _ = self._slots.look_up(key)
        return self._row_of(at) if at else self._common

    def _row_of(self, at: int) -> int:
        return self._rows + (at - self._first) * WINDOW_ROW_WORDS

    def _free_slot(self, digest: int, wall: float, start: float) -> int:
        """A slot that is empty, else one of whose key nothing counts any more; 0: there is none."""
        first, standing = self._slots.window(digest)
        if 0 in standing:
            return first + standing.index(0)
        free = (first + i for i in range(WINDOW) if not self._counting(self._row_of(first + i), wall, start))
        return next(free, 0)
