"""One run of a batching lane, and what it means for the jobs in it.

Owns what a failed run means: halves are run again until the item at fault stands alone; a run that gives a wrong number
of results fails whole, since nobody can say whose they are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.batching.job import BatchJob, WrongResult
from engine.batching.journal import Window
from engine.batching.misfit import Run
from engine.batching.waiting import Entry
from engine.batching.window import Closing
from engine.errors import Kind, RequestError
from engine.job import Delivery

if TYPE_CHECKING:
    from engine.batching.lane import BatchLane

_log = logging.getLogger(__name__)
_NOW = Closing(0.0, "free", 0)


class BatchStep:
    """A batch that has been formed (engine.job.Step)."""

    def __init__(
        self,
        lane: BatchLane,
        entries: Sequence[Entry[BatchJob]],
        late: Sequence[BatchJob],
        formed_at: float,
        *,
        closing: Closing = _NOW,
        pending_rows: int = 0,
        held_s: float = 0.0,
    ) -> None:
        """late: jobs that are told so, whatever comes of the run. The others: what is to be said of it."""
        self._lane = lane
        self.entries = entries
        self._late = late
        self._closing = closing
        self._pending_rows = pending_rows
        self._held_s = held_s
        self._formed_at = formed_at

    @property
    def is_retry(self) -> bool:
        """Whether these are halves of a batch whose run failed."""
        return self._closing.trigger == "halves"

    def run(self) -> list[Delivery]:
        """Run the batch; the jobs that it completed, and those that it cannot answer."""
        ran = self._run() if self.entries else []
        return [*self._refuse_late(), *ran]

    def fail(self, error: BaseException) -> list[Delivery]:
        """The run raised: run the halves next; a single item is at fault and ends its job."""
        if self._lane.batcher.split(self.entries):
            return self._refuse_late()
        reason = f"the model failed on it ({type(error).__name__}); the engine's log says more"
        ended = self._end(self.entries[0], RequestError(Kind.FAILED, reason))
        return [*self._refuse_late(), *ended]

    def _run(self) -> list[Delivery]:
        lane, entries = self._lane, self.entries
        rows = sum(entry.item.rows for entry in entries)
        self._note_start(rows)
        began_at = lane.clock()
        deliveries: list[Delivery] = []
        try:
            results = lane.runnable.run([entry.item.payload for entry in entries])
            if len(results) != len(entries):
                raise WrongResult(f"the run gave {len(results)} results for {len(entries)} items")
        except WrongResult as error:
            _log.error("model %s: %s", lane.name, error)
            return self._end_all("the model gave a wrong number of results; the engine's log says more")
        finally:
            ended_at = lane.clock()
            lane.tally.ran(rows, ended_at - began_at)
            lane.free_at = ended_at
        for entry, result in zip(entries, results, strict=True):
            job = entry.job
            if isinstance(result, RequestError):
                deliveries += self._end(entry, result)
                continue
            job.results[entry.index] = result
            job.num_left -= 1
            if job.num_left == 0:
                deliveries.append((job, job.results))
                self._note_answer(job, ended_at)
        self._note_end(rows, began_at, ended_at, len(deliveries))
        return deliveries

    def _note_start(self, rows: int) -> None:
        lane = self._lane
        first_at = min(entry.job.arrived_at for entry in self.entries)
        lane.tally.held_s += self._held_s
        lane.tally.queue_s += sum(self._formed_at - entry.job.arrived_at for entry in self.entries)
        for entry in self.entries:
            entry.job.held_s += self._held_s
        run = Run(
            rows=rows,
            pending_rows=self._pending_rows,
            max_batch=lane.max_batch,
            held_s=self._held_s,
            idle_s=first_at - lane.free_at,
            full_run_s=lane.pace.run_s(lane.max_batch, self.entries[0].item.size),
        )
        for kind in lane.misfit.observe(run):
            lane.journal.misfit(kind)

    def _note_answer(self, job: BatchJob, now: float) -> None:
        latency_s = now - job.arrived_at
        lane = self._lane
        lane.tally.ended(latency_s, ok=True)
        if lane.slo is not None and lane.slo.observe(latency_s, job.held_s):
            lane.batcher.may_wait = not lane.slo.shut
            lane.journal.slo(lane.slo.shut, lane.slo.p99_s)

    def _note_end(self, rows: int, began_at: float, ended_at: float, num_answered: int) -> None:
        lane, entries = self._lane, self.entries
        now = lane.clock()
        lane.pace.observe(rows, max(entry.item.size for entry in entries), max(now - self._formed_at, 1e-6))
        lane.batcher.ran(now, num_answered)
        first_at = min(entry.job.arrived_at for entry in entries)
        window = Window(
            pending_requests=self._pending_rows,
            actual_batch_size=rows,
            trigger=self._closing.trigger,
            trigger_threshold=self._closing.threshold,
            waited_us=round(self._held_s * 1e6),
            latency_us=round((ended_at - first_at) * 1e6),
        )
        lane.journal.window(window, now)

    def _refuse_late(self) -> list[Delivery]:
        lane = self._lane
        now = self._formed_at
        for job in self._late:
            job.num_left = -1
            lane.tally.num_overdue += 1
            lane.tally.ended(now - job.arrived_at, ok=False)
        return [(job, _too_late(job, now, lane)) for job in self._late]

    def _end(self, entry: Entry[BatchJob], error: RequestError) -> list[Delivery]:
        """The job of this item fails, once."""
        job = entry.job
        self._lane.drop(job)
        if job.num_left < 0:
            return []
        self._fail(job)
        if job.noun is not None:
            message = f"{job.noun}[{entry.index}] failed: {error.message}"
            error = RequestError(error.kind, message, param=job.noun, retry_after_s=error.retry_after_s)
        return [(job, error)]

    def _end_all(self, reason: str) -> list[Delivery]:
        jobs = {entry.job: None for entry in self.entries}
        for job in jobs:
            self._lane.drop(job)
            self._fail(job)
        return [(job, RequestError(Kind.FAILED, reason)) for job in jobs]

    def _fail(self, job: BatchJob) -> None:
        job.num_left = -1
        self._lane.tally.ended(self._lane.clock() - job.arrived_at, ok=False)


def _too_late(job: BatchJob, now: float, lane: BatchLane) -> RequestError:
    if job.deadline_at is not None and job.deadline_at <= now:
        message = "the deadline passed before it ran; allow more time, or come back later"
        return RequestError(Kind.DEADLINE, message)
    retry_after_s = max(1.0, lane.work_s())
    message = (
        f"the model {lane.name!r} let it wait for {lane.timeouts_s[job.level]:g} s, the timeout of its level; try again"
        f" in {retry_after_s:.0f} s"
    )
    return RequestError(Kind.OVERLOADED, message, retry_after_s=retry_after_s)
