"""One run of a batching lane, and what it means for the jobs in it.

Owns what a failed run means: halves are run again until the item at fault stands alone; a run that gives a wrong number
of results fails whole, since nobody can say whose they are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from engine.batching.ahead import Gathers
from engine.batching.job import BatchJob, WideRunnable, WrongResult
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
        beside: bool = False,
        gathered: Future[Any] | None = None,
    ) -> None:
        """late: jobs that are told so, whatever comes of the run. beside: others of the lane run at the same time.
        gathered: the batch's arrays (engine.batching.ahead). The others: what is to be said of the run."""
        self._lane = lane
        self.entries = entries
        self._late = late
        self._closing = closing
        self._pending_rows = pending_rows
        self._held_s = held_s
        self._gathered = gathered
        self._formed_at = formed_at
        self._began_at = self._ended_at = formed_at
        self._results: Sequence[Any | RequestError] = ()
        self._wrong: WrongResult | None = None
        self.beside = beside
        self.most_aloft = 1  # runs at once, this one with them, while it went on

    @property
    def is_retry(self) -> bool:
        """Whether these are halves of a batch whose run failed."""
        return self._closing.trigger == "halves"

    def run(self) -> list[Delivery]:
        """Run the batch; the jobs that it completed, and those that it cannot answer."""
        if self.entries:
            self._lane.look_ahead(self._formed_at)
            self.compute()
        return self.finish()

    def compute(self) -> None:
        """The run itself: touches nothing of the lane but its model and its clock."""
        lane, payloads = self._lane, [entry.item.payload for entry in self.entries]
        self._began_at = lane.clock()
        try:
            if self._gathered is not None and isinstance(lane.runnable, Gathers):
                self._results = lane.runnable.run_gathered(self._gathered.result())
            elif self.beside and isinstance(lane.runnable, WideRunnable):
                self._results = lane.runnable.run_beside(payloads)
            else:
                self._results = lane.runnable.run(payloads)
            if len(self._results) != len(payloads):
                raise WrongResult(f"the run gave {len(self._results)} results for {len(payloads)} items")
        except WrongResult as error:
            self._wrong = error
        finally:
            self._ended_at = lane.clock()

    def finish(self) -> list[Delivery]:
        """What came of the run."""
        ran = self._sort_out() if self.entries else []
        return [*self._refuse_late(), *ran]

    def fail(self, error: BaseException) -> list[Delivery]:
        """The run raised: run the halves next; a single item is at fault and ends its job."""
        self._note_run()
        if self._lane.batcher.split(self.entries):
            return self._refuse_late()
        reason = f"the model failed on it ({type(error).__name__}); the engine's log says more"
        ended = self._end(self.entries[0], RequestError(Kind.FAILED, reason))
        return [*self._refuse_late(), *ended]

    def _sort_out(self) -> list[Delivery]:
        lane, entries = self._lane, self.entries
        self._note_run()
        if self._wrong is not None:
            _log.error("model %s: %s", lane.name, self._wrong)
            return self._end_all("the model gave a wrong number of results; the engine's log says more")
        deliveries: list[Delivery] = []
        for entry, result in zip(entries, self._results, strict=True):
            job = entry.job
            if isinstance(result, RequestError):
                deliveries += self._end(entry, result)
                continue
            job.results[entry.index] = result
            job.num_left -= 1
            if job.num_left == 0:
                deliveries.append((job, job.results))
                self._note_answer(job, self._ended_at)
        self._note_end(len(deliveries))
        return deliveries

    @property
    def _num_rows(self) -> int:
        return sum(entry.item.rows for entry in self.entries)

    def _note_run(self) -> None:
        lane, rows = self._lane, self._num_rows
        lane.aloft.discard(self)
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
        lane.tally.ran(rows, self._ended_at - self._began_at)
        lane.free_at = self._ended_at

    def _note_answer(self, job: BatchJob, now: float) -> None:
        latency_s = now - job.arrived_at
        lane = self._lane
        lane.tally.ended(latency_s, ok=True)
        if lane.slo is not None and lane.slo.observe(latency_s, job.held_s):
            lane.batcher.may_wait = not lane.slo.shut
            lane.journal.slo(lane.slo.shut, lane.slo.p99_s)

    def _note_end(self, num_answered: int) -> None:
        lane, entries, rows = self._lane, self.entries, self._num_rows
        now = lane.clock()
        # Beside others it had a share of the device, so that is what it took.
        sharing = lane.width if lane.divided else self.most_aloft
        took_s = (self._ended_at - self._began_at) / sharing if self.beside else now - self._formed_at
        lane.pace.observe(rows, max(entry.item.size for entry in entries), max(took_s, 1e-6))
        lane.batcher.ran(now, num_answered)
        first_at = min(entry.job.arrived_at for entry in entries)
        window = Window(
            pending_requests=self._pending_rows,
            actual_batch_size=rows,
            trigger=self._closing.trigger,
            trigger_threshold=self._closing.threshold,
            waited_us=round(self._held_s * 1e6),
            latency_us=round((self._ended_at - first_at) * 1e6),
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
        jobs = {entry.job: None for entry in self.entries if entry.job.num_left > 0}  # others have been told
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
