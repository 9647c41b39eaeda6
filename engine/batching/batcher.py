"""Which items share the next run of a model, and when it begins.

Pure: jobs are opaque keys, ``now`` is an argument. Four ideas, in order:

1. When the device is free, what waits is run; what comes during a run is the next batch. Only where waiting for company
   pays (engine/batching/window.py) a window opens, counted from the first waiting job.
2. Jobs lead in turn, those of a more urgent level before others. The job at the head gives the batch its first item and
   goes to the back, so a job with a thousand items cannot hold up one with a single item, and a job waits for no more
   turns than there are jobs of its level or above before it leads.
3. Like goes with like. Only items of one shape share a run, and each row is padded to the longest. Items join in order
   of how near their size is to the leader's, each only if running it along is cheaper than running it alone: where
   company gains nothing, nobody waits for the others' rows.
4. What is overdue does not run: whoever asked is told instead.

A batch whose run raised is split in halves, which run before anything else: after at most log2(max_batch) more runs
on its path the culprit stands alone and only it fails.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from engine.batching.arrivals import Arrivals
from engine.batching.item import Item
from engine.batching.pace import Pace
from engine.batching.returns import Returns
from engine.batching.waiting import NORMAL, Entry, Waiting
from engine.batching.window import Adaptive, Closing, Forming, Policy, Traffic

J = TypeVar("J", bound=Hashable)

#: What running along must save, as a part of both runs' time: a longer run makes all in it wait.
MIN_SAVING = 0.03

_AT_ONCE = Closing(-math.inf, "halves", 0)


class _Formed(Generic[J]):
    """The batch that would run now if nothing else bounds it."""

    __slots__ = ("due_at", "entries", "forming", "next_due_at", "run_s")

    def __init__(
        self, entries: list[Entry[J]], run_s: float, due_at: float, next_due_at: float, forming: Forming
    ) -> None:
        self.entries = entries
        self.run_s = run_s
        self.due_at = due_at  # of the first of its jobs
        self.next_due_at = next_due_at  # of the first of all jobs
        self.forming = forming


class Batcher(Generic[J]):
    """The waiting items of one model. One item always fits a run."""

    def __init__(self, pace: Pace, *, max_batch: int, policy: Policy | None = None, slo_s: float = math.inf) -> None:
        """pace: what runs take. max_batch: rows per run. policy: None: runs as soon as it can. slo_s: waiting for
        company may take half of what the run leaves of so many seconds."""
        self.max_batch = max_batch
        self.slo_s = slo_s
        self.may_wait = True  # set it to False while waiting breaks the SLO
        self.policy = policy or Adaptive(pace, 0.0)
        self.arrivals = Arrivals()
        self.returns = Returns()
        self._now = 0.0
        self._free_at = -math.inf
        self._pace = pace
        self._waiting: Waiting[J] = Waiting()
        self._halves: deque[tuple[Entry[J], ...]] = deque()
        self._formed: _Formed[J] | None = None  # None: to be found out
        self._closing: tuple[float, Closing] | None = None  # as it was at an instant; None: to be found out

    @property
    def num_rows(self) -> int:
        """That wait, but for halves."""
        return self._waiting.num_rows

    def add(
        self, job: J, items: Sequence[Item], now: float, *, level: int = NORMAL, due_at: float | None = None
    ) -> None:
        """Queue a job of at least one item. due_at: when its items are of no use any more if they have not run."""
        self._waiting.add(job, items, now, level, math.inf if due_at is None else due_at)
        self.arrivals.come(now)
        self.returns.come(now)
        self._now = max(self._now, now)
        self._formed = None

    def drop(self, job: J) -> None:
        """Forget the items of a job that no batch has taken, and those that would have run again. Unknown: ignored."""
        self._waiting.drop(job)
        self._formed = None
        if self._halves:
            halves = (tuple(entry for entry in half if entry.job != job) for half in self._halves)
            self._halves = deque(half for half in halves if half)

    def ran(self, now: float, num_answered: int) -> None:
        """A run has ended and answered so many jobs."""
        self._now = self._free_at = max(self._now, now)
        self._formed = None
        if num_answered:
            self.returns.answered(now, num_answered)

    def overdue(self, now: float) -> list[J]:
        """The jobs that waited for too long; they are dropped."""
        formed = self._form()
        if formed is None or formed.next_due_at > now:
            return []
        late = self._waiting.overdue(now)
        for job in late:
            self.drop(job)
        return late

    @property
    def has_halves(self) -> bool:
        """Whether parts of a failed run are to be run again."""
        return bool(self._halves)

    def closing(self) -> Closing | None:
        """When and why the next batch runs, if nothing more comes; None when nothing waits."""
        if self._halves:
            return _AT_ONCE
        formed = self._form()
        if formed is None:
            return None
        if self._closing is None or self._closing[0] != self._now:
            traffic = Traffic(self.arrivals.rate(self._now), self.returns, self._now)
            self._closing = self._now, self.policy.close(formed.forming, traffic)
        return self._closing[1]

    def wake_at(self) -> float | None:
        """When the next batch may run or a job is overdue; in the past if it may now; None when nothing waits."""
        closing, formed = self.closing(), self._form()
        if closing is None:
            return None
        return closing.at if formed is None else min(closing.at, formed.next_due_at)

    def ready(self, now: float) -> bool:
        """Whether ``take`` should be called, or ``overdue``."""
        self._now = max(self._now, now)
        at = self.wake_at()
        return at is not None and at <= now

    def take(self, now: float, allowance_s: float = math.inf, most_rows: float = math.inf) -> tuple[Entry[J], ...]:
        """The items of the next run, () when nothing waits. allowance_s: what the run should take at most; most_rows:
        that it should have at most."""
        if self._halves:
            return self._halves.popleft()
        formed = self._form()
        if formed is None:
            return ()
        allowance_s = min(allowance_s, formed.due_at - now)
        leader = formed.entries[0]
        fits = formed.run_s <= allowance_s and formed.forming.rows <= most_rows
        entries = formed.entries if fits else self._mates(leader, allowance_s, min(self.max_batch, most_rows))
        for entry in entries:
            self._waiting.remove(entry)
        self._waiting.to_the_back(leader.job)
        self._formed = None
        return tuple(entries)

    def split(self, entries: Sequence[Entry[J]]) -> bool:
        """The run of these items raised: run its halves next. False: it is a single item, so that one is at fault."""
        if len(entries) < 2:
            return False
        middle = len(entries) // 2
        self._halves.extend((tuple(entries[:middle]), tuple(entries[middle:])))
        return True

    def _form(self) -> _Formed[J] | None:
        if self._formed is None and (leader := self._waiting.leader()):
            self._closing = None
            entries = self._mates(leader, math.inf, self.max_batch)
            rows, longest = sum(entry.item.rows for entry in entries), max(entry.item.size for entry in entries)
            run_s = self._pace.run_s(rows, longest)
            due_at, since = self._waiting.due_at({entry.job for entry in entries}), self._waiting.since()
            forming = Forming(
                rows=rows,
                size=longest,
                full=rows >= self.max_batch or not self._pays(rows, longest, 1, longest),
                limit=self.max_batch,
                since=max(since, self._free_at),
                start_by=min(due_at - run_s, since + max(0.0, self.slo_s - run_s) / 2),
                may_wait=self.may_wait,
            )
            self._formed = _Formed(entries, run_s, due_at, self._waiting.due_at(), forming)
        return self._formed

    def _mates(self, leader: Entry[J], allowance_s: float, most_rows: float) -> list[Entry[J]]:
        """The leader, and the items that join it."""
        entries, rows, longest = [leader], leader.item.rows, leader.item.size
        for size, alike in self._waiting.near(leader.item):
            padded_to = max(longest, size)
            for entry in alike:
                joined = rows + entry.item.rows
                if rows >= most_rows:
                    return entries
                if entry is leader or joined > most_rows:
                    continue
                if self._pace.run_s(joined, padded_to) > allowance_s:
                    break
                if not self._pays(rows, longest, entry.item.rows, size):
                    break
                entries.append(entry)
                rows, longest = joined, padded_to
        return entries

    def _pays(self, rows: int, longest: int, more_rows: int, size: int) -> bool:
        """Whether so many more rows of this size are cheaper to run along than alone."""
        apart_s = self._pace.run_s(rows, longest) + self._pace.run_s(more_rows, size)
        return self._pace.run_s(rows + more_rows, max(longest, size)) <= (1 - MIN_SAVING) * apart_s
