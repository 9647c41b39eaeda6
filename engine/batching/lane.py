"""One model's lane on its device: items from the batcher, results back to the jobs.

Belongs to the runner thread (engine/job.py). Owns what a failed run means: halves are run again until the item at fault
stands alone; a run that gives a wrong number of results fails whole, since nobody can say whose they are.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.batching.batcher import NORMAL, Batcher, Entry
from engine.batching.item import Item
from engine.batching.pace import Pace
from engine.errors import Kind, RequestError
from engine.job import Delivery, Job

_log = logging.getLogger(__name__)


class WrongResult(Exception):
    """What a run gave cannot be told apart by items, so it is nobody's; running it again would give no better."""


class Runnable(Protocol):
    """A model as the lane calls it, on the device's thread."""

    def run(self, payloads: Sequence[Any]) -> Sequence[Any | RequestError]:
        """One result for each payload, in their order; a RequestError in its place fails that one's job alone.

        Raises WrongResult: all of them fail. Raises anything else: its halves are run again, and what raises alone
        is at fault.
        """
        ...


@dataclass(eq=False, kw_only=True)
class BatchJob(Job):
    """The items of one request. Its only event is the list of their results in order, or a RequestError."""

    items: Sequence[Item]  # at least one
    level: int = NORMAL  # 0 high, 1 normal, 2 low
    deadline_at: float | None = None  # monotonic seconds; None: whenever
    noun: str | None = None  # what an error calls an item ("input": input[3]); None: it is the only one
    results: list[Any] = field(init=False)
    num_left: int = field(init=False)

    def __post_init__(self) -> None:
        self.results = [None] * len(self.items)
        self.num_left = len(self.items)


class BatchLane:
    """A Lane (engine/job.py) whose steps are batches."""

    max_stall_s = math.inf

    def __init__(
        self,
        name: str,
        runnable: Runnable,
        batcher: Batcher[BatchJob],
        pace: Pace,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """pace: the batcher's."""
        self.name = name
        self.num_runs = 0
        self.run_s = 0.0
        self.runnable = runnable
        self.batcher = batcher
        self.pace = pace
        self.clock = clock

    def add(self, job: BatchJob) -> None:
        """Queue all items of a job."""
        self.batcher.add(job, job.items, job.arrived_at, level=job.level, due_at=job.deadline_at)

    def drop(self, job: BatchJob) -> None:
        """Forget what has not run of a job."""
        self.batcher.drop(job)

    def ready(self, now: float) -> bool:
        """Whether a batch may run, or somebody is to be told that it is too late."""
        return self.batcher.ready(now)

    def decoding(self) -> bool:
        """Never: a result comes at once."""
        return False

    def tidy(self, now: float) -> None:
        pass  # it keeps nothing

    def wake_at(self) -> float | None:
        """When the batching window of what waits ends, or the first of it is overdue."""
        return self.batcher.wake_at()

    def plan(self, now: float, allowance_s: float) -> BatchStep | None:
        """The next batch, kept to what the allowance lets run; items of cancelled and of overdue jobs are left out."""
        late = [job for job in self.batcher.overdue(now) if not job.cancelled]
        entries = self.batcher.take(allowance_s) if self.batcher.ready(now) else ()
        for job in {entry.job for entry in entries if entry.job.cancelled}:
            self.drop(job)
        wanted = [entry for entry in entries if not entry.job.cancelled]
        return BatchStep(self, wanted, late) if wanted or late else None


class BatchStep:
    """One run of the model."""

    def __init__(self, lane: BatchLane, entries: Sequence[Entry[BatchJob]], late: Sequence[BatchJob]) -> None:
        self._lane = lane
        self._entries = entries
        self._late = late

    def run(self) -> list[Delivery]:
        """Run the batch; the jobs that it completed, and those that it cannot answer."""
        ran = self._run() if self._entries else []
        return [*self._refuse_late(), *ran]

    def fail(self, error: BaseException) -> list[Delivery]:
        """The run raised: run the halves next; a single item is at fault and ends its job."""
        if self._lane.batcher.split(self._entries):
            return self._refuse_late()
        ended = self._end(self._entries[0], RequestError(Kind.FAILED, _failed_on_it(error)))
        return [*self._refuse_late(), *ended]

    def _run(self) -> list[Delivery]:
        lane, entries = self._lane, self._entries
        lane.num_runs += 1
        began_at = lane.clock()
        try:
            results = lane.runnable.run([entry.item.payload for entry in entries])
            if len(results) != len(entries):
                raise WrongResult(f"{len(results)} results for {len(entries)} items")
        except WrongResult as error:
            _log.error("model %s: %s", lane.name, error)
            return self._end_all("the model gave a wrong number of results; the engine's log says more")
        finally:
            took_s = max(lane.clock() - began_at, 1e-6)
            lane.run_s += took_s
        lane.pace.observe(sum(entry.item.rows for entry in entries), max(e.item.size for e in entries), took_s)
        deliveries: list[Delivery] = []
        for entry, result in zip(entries, results, strict=True):
            job = entry.job
            if isinstance(result, RequestError):
                deliveries += self._end(entry, result)
                continue
            job.results[entry.index] = result
            job.num_left -= 1
            if job.num_left == 0:
                deliveries.append((job, job.results))
        return deliveries

    def _refuse_late(self) -> list[Delivery]:
        message = "the deadline passed before it ran; allow more time, or come back later"
        return [(job, RequestError(Kind.DEADLINE, message)) for job in self._late]

    def _end(self, entry: Entry[BatchJob], error: RequestError) -> list[Delivery]:
        """The job of this item fails, once."""
        job = entry.job
        self._lane.drop(job)
        if job.num_left < 0:
            return []
        job.num_left = -1
        if job.noun is not None:
            message = f"{job.noun}[{entry.index}] failed: {error.message}"
            error = RequestError(error.kind, message, param=job.noun, retry_after_s=error.retry_after_s)
        return [(job, error)]

    def _end_all(self, reason: str) -> list[Delivery]:
        jobs = {entry.job: None for entry in self._entries}
        for job in jobs:
            self._lane.drop(job)
            job.num_left = -1
        return [(job, RequestError(Kind.FAILED, reason)) for job in jobs]


def _failed_on_it(error: BaseException) -> str:
    return f"the model failed on it ({type(error).__name__}); the engine's log says more"
