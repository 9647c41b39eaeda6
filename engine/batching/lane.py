"""One model's lane on its device: items from the batcher, results back to the jobs.

Belongs to the runner thread (engine/job.py), but for the places of the levels, which the event loop grants. Owns when a
held batch runs after all, and what is counted and said of each run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from engine.admission import Admission
from engine.arbiter import IDLE_ALLOWANCE_S
from engine.batching.ahead import Ahead, Gatherer, Gathers
from engine.batching.batcher import Batcher
from engine.batching.job import BatchJob, Runnable, WideRunnable, WrongResult
from engine.batching.journal import Journal
from engine.batching.misfit import Misfit
from engine.batching.pace import Pace
from engine.batching.settings import DEFAULTS, BatchingSettings
from engine.batching.slo import Slo
from engine.batching.step import BatchStep
from engine.batching.tally import Tally
from engine.batching.window import Adaptive, ByRate

__all__ = ["BatchJob", "BatchLane", "Runnable", "WideRunnable", "WrongResult"]

#: What a run costs beyond its rows, before any has been measured, in the units of ``cost``.
_RUN_COST = {"items": 1.0, "tokens": 16.0, "pixels": 1e4}


class BatchLane:
    """A Lane (engine/job.py) whose steps are batches."""

    max_stall_s = math.inf

    def __init__(
        self,
        name: str,
        runnable: Runnable,
        settings: BatchingSettings = DEFAULTS,
        *,
        clock: Callable[[], float] = time.monotonic,
        divided: bool = True,
    ) -> None:
        """What the settings do not say is as in DEFAULTS. divided: each of the runs that go on beside each other has
        a share of the cores that is fixed; False: they have all cores together, and one that is alone has them all."""
        settings = settings.over(DEFAULTS)
        assert settings.max_batch is not None  # the defaults say all
        assert settings.cost is not None
        assert settings.log is not None
        self.name = name
        self.runnable = runnable
        self.width = runnable.width if isinstance(runnable, WideRunnable) else 1
        self.divided = divided
        self.aloft: set[BatchStep] = set()  # those that were begun to go on beside others, and have not landed
        self.clock = clock
        self.max_batch = settings.max_batch
        self.pace = Pace(_RUN_COST[settings.cost])
        window_s = settings.window_s if isinstance(settings.window_s, float | int) else None
        self.batcher: Batcher[BatchJob] = Batcher(
            self.pace,
            max_batch=settings.max_batch,
            policy=ByRate() if settings.policy == "rate" else Adaptive(self.pace, window_s),
            slo_s=settings.slo_p99_s or math.inf,
        )
        self.tally = Tally()
        self.misfit = Misfit()
        self.journal = Journal(name, settings.log)
        self.slo = None if settings.slo_p99_s is None else Slo(settings.slo_p99_s)
        self.timeouts_s = [level.timeout_s for level in settings.levels]
        self.places = [
            None if level.queue is None else Admission(running=self.max_batch, queue=level.queue, work_s=self.work_s)
            for level in settings.levels
        ]
        self.num_units = 0  # rows x size of all requests inside; the event loop's
        self.free_at = -math.inf  # when the last run ended
        self._held_at: float | None = None  # since when a free device is held for company
        self._gatherer = Gatherer(runnable) if isinstance(runnable, Gathers) and self.width == 1 else None
        self._ahead: Ahead | None = None  # the next batch, formed while the device runs

    @property
    def run_s(self) -> float:
        """Seconds inside the runtime so far."""
        return self.tally.run_s

    @property
    def num_runs(self) -> int:
        """Batches run so far."""
        return self.tally.num_runs

    def work_s(self) -> float:
        """How long all that is inside will take, in seconds."""
        return self.pace.seconds_per_unit * self.num_units

    def add(self, job: BatchJob) -> None:
        """Queue all items of a job."""
        self.batcher.add(job, job.items, job.arrived_at, level=job.level, due_at=self._due_at(job))

    def drop(self, job: BatchJob) -> None:
        """Forget what has not run of a job."""
        self.batcher.drop(job)

    def ready(self, now: float) -> bool:
        """Whether a batch may run, or somebody is to be told that it is too late."""
        ready = self._ahead is not None or self.batcher.ready(now)
        if not ready and self._held_at is None and self.batcher.num_rows:
            self._held_at = now
        return ready

    def decoding(self) -> bool:
        """Never: a result comes at once."""
        return False

    def tidy(self, now: float) -> None:
        pass  # it keeps nothing

    def wake_at(self) -> float | None:
        """When the batching window of what waits ends, or the first of it is overdue."""
        return 0.0 if self._ahead is not None else self.batcher.wake_at()

    def plan(self, now: float, allowance_s: float) -> BatchStep | None:
        """The next batch, kept to what the allowance lets run; items of cancelled and of overdue jobs are left out."""
        return self._plan(now, allowance_s, math.inf, beside=False)

    def plan_beside(self, now: float, num_aloft: int) -> BatchStep | None:
        """The same while ``num_aloft`` runs go on: an equal share of what waits for each that may begin now, and no
        more than end with a turn when all go on, as other lanes wait for them all. A single row alone has all
        cores."""
        rows = self.batcher.num_rows
        share = math.ceil(rows / (self.width - num_aloft))
        step = self._plan(now, IDLE_ALLOWANCE_S / self.width, share, beside=num_aloft > 0 or rows > 1)
        if step is not None and step.beside:
            self.aloft.add(step)
            for each in self.aloft:
                each.most_aloft = max(each.most_aloft, len(self.aloft))
        return step

    def _plan(self, now: float, allowance_s: float, most_rows: float, *, beside: bool) -> BatchStep | None:
        late = [job for job in self.batcher.overdue(now) if not job.cancelled]
        if self._ahead is not None and not self.batcher.has_halves:
            return self._take_ahead(self._ahead, late, now)
        closing = self.batcher.closing()
        if closing is None or closing.at > now:
            return BatchStep(self, [], late, now) if late else None
        pending_rows = self.batcher.num_rows
        entries = self.batcher.take(now, allowance_s, most_rows)
        for job in {entry.job for entry in entries if entry.job.cancelled}:
            self.drop(job)
        wanted = [entry for entry in entries if not entry.job.cancelled]
        held_s, self._held_at = 0.0 if self._held_at is None else now - self._held_at, None
        if not held_s and closing.trigger in ("window", "deadline"):
            closing = closing._replace(trigger="free", threshold=0)
        if not wanted and not late:
            return None
        return BatchStep(
            self,
            wanted,
            late,
            now,
            closing=closing,
            pending_rows=pending_rows,
            held_s=held_s,
            beside=beside and bool(wanted),
        )

    def look_ahead(self, now: float) -> None:
        """A run is about to begin: form the next batch if there is a full one, and let its arrays be put together."""
        if self._gatherer is None or self._ahead is not None or self.batcher.has_halves:
            return
        closing = self.batcher.closing()
        if closing is not None and closing.trigger == "full":
            pending_rows = self.batcher.num_rows
            self._ahead = self._gatherer.begin(self.batcher.take(now), closing, pending_rows)
            self.tally.num_ahead += 1

    def close(self) -> None:
        """The device runs it no more."""
        if self._gatherer is not None:
            self._gatherer.close()

    def _take_ahead(self, ahead: Ahead, late: list[BatchJob], now: float) -> BatchStep | None:
        self._ahead = self._held_at = None
        for job in {entry.job for entry in ahead.entries}:
            if self._due_at(job) <= now and job not in late and not job.cancelled and job.num_left > 0:
                late.append(job)
                self.drop(job)
        wanted = [
            entry
            for entry in ahead.entries
            if not entry.job.cancelled and entry.job.num_left > 0 and entry.job not in late
        ]
        if not wanted and not late:
            return None
        gathered = ahead.gathered if len(wanted) == len(ahead.entries) else None
        return BatchStep(
            self, wanted, late, now, closing=ahead.closing, pending_rows=ahead.pending_rows, gathered=gathered
        )

    def _due_at(self, job: BatchJob) -> float:
        """When it is of no use any more to run it."""
        timeout_s = self.timeouts_s[job.level]
        deadline_at = math.inf if job.deadline_at is None else job.deadline_at
        return deadline_at if timeout_s is None else min(deadline_at, job.arrived_at + timeout_s)

    def statistics(self) -> dict[str, float]:
        """Numbers for /metrics by name; ``*_total`` only grow. Any thread."""
        tally = self.tally
        numbers: dict[str, float] = {
            "batch_requests_total": tally.num_ok,
            "batch_failed_total": tally.num_failed,
            "batch_overdue_total": tally.num_overdue,
            "batch_rows_total": tally.num_rows,
            "batch_queue_seconds_total": tally.queue_s,
            "batch_run_seconds_total": tally.run_s,
            "batch_held_seconds_total": tally.held_s,
            "batch_ahead_total": tally.num_ahead,
            "batch_rows_waiting": self.batcher.num_rows,
            **{f"batch_misfit_{kind}": present for kind, present in self.misfit.present.items()},
        }
        if self.slo is not None:
            numbers["slo_broken_by_waiting_total"] = self.slo.num_broken
            numbers["slo_window_shut"] = self.slo.shut
        return numbers
