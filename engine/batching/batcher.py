"""Which items share the next run of a model.

Pure: jobs are opaque keys, ``now`` is an argument. Four ideas, in order:

1. No timer. When the device is free, what waits is run; what comes during a run is the next batch. An optional window,
   counted from the first waiting job, trades latency for fuller batches on a device that is mostly idle.
2. Jobs lead in turn, those of a more urgent level before others. The job at the head gives the batch its first item and
   goes to the back, so a job with a thousand items cannot hold up one with a single item, and a job waits for no more
   turns than there are jobs of its level or above before it leads.
3. Like goes with like. Only items of one shape share a run, and each row is padded to the longest. Items join in order
   of how near their size is to the leader's, each only if running it along is no dearer than running it alone.
4. What is overdue does not run: whoever asked is told instead.

A batch whose run raised is split in halves, which run before anything else: after at most log2(max_batch) more runs
on its path the culprit stands alone and only it fails.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from engine.batching.item import Item
from engine.batching.pace import Pace

J = TypeVar("J", bound=Hashable)

HIGH, NORMAL, LOW = LEVELS = (0, 1, 2)  # the most urgent first


@dataclass(frozen=True, slots=True, eq=False)
class Entry(Generic[J]):
    """One item: the index-th of its job."""

    job: J
    index: int
    item: Item


@dataclass(slots=True)
class _Waiting(Generic[J]):
    """One job's items that no batch has taken yet, in order."""

    since: float
    level: int
    due_at: float
    entries: dict[Entry[J], None] = field(default_factory=dict)


class Batcher(Generic[J]):
    """The waiting items of one model. Limits: rows and padded size per run; one item always fits."""

    def __init__(self, pace: Pace, *, max_batch: int, max_padded: float = math.inf, window_s: float = 0.0) -> None:
        """pace: what runs take, which decides who shares one. max_padded: rows x size of the largest in one run."""
        self.max_batch = max_batch
        self.max_padded = max_padded
        self.window_s = window_s
        self.num_rows = 0
        self.num_sized = 0  # rows x size of all that wait
        self._pace = pace
        self._jobs: tuple[dict[J, _Waiting[J]], ...] = tuple({} for _ in LEVELS)  # in order of who leads next
        self._alike: dict[tuple[Hashable, int], dict[int, dict[Entry[J], None]]] = {}  # shape, level -> size -> entries
        self._halves: deque[tuple[Entry[J], ...]] = deque()

    def add(
        self, job: J, items: Sequence[Item], now: float, *, level: int = NORMAL, due_at: float | None = None
    ) -> None:
        """Queue a job of at least one item. due_at: when its items are of no use any more if they have not run."""
        waiting = _Waiting[J](now, level, math.inf if due_at is None else due_at)
        self._jobs[level][job] = waiting
        for index, item in enumerate(items):
            entry = Entry(job, index, item)
            waiting.entries[entry] = None
            self._alike.setdefault((item.shape, level), {}).setdefault(item.size, {})[entry] = None
            self.num_rows += item.rows
            self.num_sized += item.rows * item.size

    def drop(self, job: J) -> None:
        """Forget the items of a job that no batch has taken, and those that would have run again. Unknown: ignored."""
        for jobs in self._jobs:
            if waiting := jobs.get(job):
                for entry in tuple(waiting.entries):
                    self._remove(entry, waiting)
        halves = (tuple(entry for entry in half if entry.job != job) for half in self._halves)
        self._halves = deque(half for half in halves if half)

    def overdue(self, now: float) -> list[J]:
        """The jobs that waited for too long; they are dropped."""
        late = [job for jobs in self._jobs for job, waiting in jobs.items() if waiting.due_at <= now]
        for job in late:
            self.drop(job)
        return late

    def wake_at(self) -> float | None:
        """When the next batch may run or a job is overdue; in the past if it may now; None when nothing waits."""
        if self._halves:
            return 0.0
        if not self.num_rows:
            return None
        if self.num_rows >= self.max_batch or self.num_sized >= self.max_padded:
            return 0.0
        return min(min(w.since + self.window_s, w.due_at) for jobs in self._jobs for w in jobs.values())

    def ready(self, now: float) -> bool:
        """Whether ``take`` should be called."""
        at = self.wake_at()
        return at is not None and at <= now

    def take(self, allowance_s: float = math.inf) -> tuple[Entry[J], ...]:
        """The items of the next run, () when nothing waits. allowance_s: what the run should take at most."""
        if self._halves:
            return self._halves.popleft()
        for jobs in self._jobs:
            for job, waiting in jobs.items():
                entries = self._mates(next(iter(waiting.entries)), allowance_s)
                for entry in entries:
                    self._remove(entry, self._waiting(entry.job))
                if job in jobs:
                    jobs[job] = jobs.pop(job)
                return tuple(entries)
        return ()

    def split(self, entries: Sequence[Entry[J]]) -> bool:
        """The run of these items raised: run its halves next. False: it is a single item, so that one is at fault."""
        if len(entries) < 2:
            return False
        middle = len(entries) // 2
        self._halves.extend((tuple(entries[:middle]), tuple(entries[middle:])))
        return True

    def _mates(self, leader: Entry[J], allowance_s: float) -> list[Entry[J]]:
        """The leader, and the items that join it."""
        entries, rows, longest = [leader], leader.item.rows, leader.item.size
        run_s = self._pace.run_s(rows, longest)
        for size, alike in self._by_nearness(leader.item):
            for entry in alike:
                if entry is leader:
                    continue
                if rows >= self.max_batch:
                    return entries
                joined, padded_to = rows + entry.item.rows, max(longest, size)
                if joined > self.max_batch:
                    continue
                together_s = self._pace.run_s(joined, padded_to)
                if together_s > run_s + self._pace.run_s(entry.item.rows, size) or together_s > allowance_s:
                    break
                if joined * padded_to > self.max_padded:
                    break
                entries.append(entry)
                rows, longest, run_s = joined, padded_to, together_s
        return entries

    def _by_nearness(self, leader: Item) -> Iterator[tuple[int, dict[Entry[J], None]]]:
        """What waits of the leader's shape, by size: the more urgent levels first, in each the nearest sizes."""
        for level in LEVELS:
            if by_size := self._alike.get((leader.shape, level)):
                for size in sorted(by_size, key=lambda size: abs(size - leader.size)):
                    yield size, by_size[size]

    def _waiting(self, job: J) -> _Waiting[J]:
        return next(jobs[job] for jobs in self._jobs if job in jobs)

    def _remove(self, entry: Entry[J], waiting: _Waiting[J]) -> None:
        del waiting.entries[entry]
        if not waiting.entries:
            del self._jobs[waiting.level][entry.job]
        key, size = (entry.item.shape, waiting.level), entry.item.size
        del self._alike[key][size][entry]
        if not self._alike[key][size]:
            del self._alike[key][size]
            if not self._alike[key]:
                del self._alike[key]
        self.num_rows -= entry.item.rows
        self.num_sized -= entry.item.rows * size
