"""Which texts share the next run of an encoder.

Pure: jobs are opaque keys, texts are their lengths, ``now`` is an argument. Three ideas, in order:

1. No timer. When the device is free, what waits is run; what comes during a run is the next batch. An optional window,
   counted from the first waiting job, trades latency for fuller batches on a device that is mostly idle.
2. Jobs lead in turn. The job at the head gives the batch its first row and goes to the back, so a job with a thousand
   rows cannot hold up one with a single row, and a job waits for no more turns than there are jobs before it leads.
3. Like goes with like. Cost is counted in padded tokens, plus a constant for the run itself. Rows join in order of
   how near their length is to the leader's, each only if running it along is no dearer than running it alone.

A batch whose run raised is split in halves, which run before anything else: after at most log2(max_batch) more runs
on its path the culprit stands alone and only it fails.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

J = TypeVar("J", bound=Hashable)

#: What a run costs beyond its padded tokens, as tokens (MiniLM on two cores: 2.4 ms a run, 0.17 ms a token).
RUN_COST_TOKENS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Row(Generic[J]):
    """One text: the index-th of its job."""

    job: J
    index: int
    num_tokens: int


def cost_tokens(num_rows: int, longest: int) -> int:
    """What a run of ``num_rows`` rows padded to ``longest`` tokens costs."""
    return RUN_COST_TOKENS + num_rows * longest


@dataclass(slots=True)
class _Waiting(Generic[J]):
    """One job's rows that no batch has taken yet, in order."""

    since: float
    rows: dict[Row[J], None] = field(default_factory=dict)


class Batcher(Generic[J]):
    """The waiting rows of one model. Limits: rows and padded tokens per run; one row always fits."""

    def __init__(self, *, max_batch: int, max_padded_tokens: int, window_s: float = 0.0) -> None:
        self.max_batch = max_batch
        self.max_padded_tokens = max_padded_tokens
        self.window_s = window_s
        self.num_rows = 0
        self.num_tokens = 0
        self._jobs: dict[J, _Waiting[J]] = {}  # in order of who leads next
        self._by_length: dict[int, dict[Row[J], None]] = {}
        self._halves: deque[tuple[Row[J], ...]] = deque()

    def add(self, job: J, lengths: Sequence[int], now: float) -> None:
        """Queue a job: one row for each length in tokens, of which there is at least one."""
        waiting = self._jobs[job] = _Waiting[J](now)
        for index, num_tokens in enumerate(lengths):
            row = Row(job, index, num_tokens)
            waiting.rows[row] = None
            self._by_length.setdefault(num_tokens, {})[row] = None
            self.num_rows += 1
            self.num_tokens += num_tokens

    def drop(self, job: J) -> None:
        """Forget the rows of a job that no batch has taken, and those that would have run again. Unknown: ignored."""
        if waiting := self._jobs.get(job):
            for row in tuple(waiting.rows):
                self._remove(row)
        halves = (tuple(row for row in half if row.job != job) for half in self._halves)
        self._halves = deque(half for half in halves if half)

    def wake_at(self) -> float | None:
        """When the next batch may run; in the past if it may now; None when nothing waits."""
        if self._halves:
            return 0.0
        if not self._jobs:
            return None
        if self.num_rows >= self.max_batch or self.num_tokens >= self.max_padded_tokens:
            return 0.0
        return min(waiting.since for waiting in self._jobs.values()) + self.window_s

    def ready(self, now: float) -> bool:
        """Whether ``take`` should be called."""
        at = self.wake_at()
        return at is not None and at <= now

    def take(self, max_padded_tokens: float = math.inf) -> tuple[Row[J], ...]:
        """The rows of the next run, () when nothing waits. max_padded_tokens: a tighter limit for this run."""
        if self._halves:
            return self._halves.popleft()
        if not self._jobs:
            return ()
        limit = min(self.max_padded_tokens, max_padded_tokens)
        job, waiting = next(iter(self._jobs.items()))
        rows = self._mates(next(iter(waiting.rows)), limit)
        for row in rows:
            self._remove(row)
        if job in self._jobs:
            self._jobs[job] = self._jobs.pop(job)
        return tuple(rows)

    def split(self, rows: Sequence[Row[J]]) -> bool:
        """The run of these rows raised: run its halves next. False: it is a single row, so that one is at fault."""
        if len(rows) < 2:
            return False
        middle = len(rows) // 2
        self._halves.extend((tuple(rows[:middle]), tuple(rows[middle:])))
        return True

    def _mates(self, leader: Row[J], limit: float) -> list[Row[J]]:
        """The leader, and the rows that join it."""
        rows = [leader]
        longest = leader.num_tokens
        for num_tokens in sorted(self._by_length, key=lambda length: abs(length - leader.num_tokens)):
            for row in self._by_length[num_tokens]:
                if row is leader:
                    continue
                if len(rows) == self.max_batch:
                    return rows
                padded_to = max(longest, num_tokens)
                together = cost_tokens(len(rows) + 1, padded_to)
                apart = cost_tokens(len(rows), longest) + cost_tokens(1, num_tokens)
                if together > apart or (len(rows) + 1) * padded_to > limit:
                    break
                rows.append(row)
                longest = padded_to
        return rows

    def _remove(self, row: Row[J]) -> None:
        waiting = self._jobs[row.job]
        del waiting.rows[row]
        if not waiting.rows:
            del self._jobs[row.job]
        bucket = self._by_length[row.num_tokens]
        del bucket[row]
        if not bucket:
            del self._by_length[row.num_tokens]
        self.num_rows -= 1
        self.num_tokens -= row.num_tokens
