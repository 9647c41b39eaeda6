"""One embedding model's lane on its device: rows from the batcher, vectors back to the jobs.

Belongs to the runner thread (engine/job.py). Owns what a failed run means: halves are run again until the text at
fault stands alone; a run that gives a wrong number of vectors fails whole, since nobody can say whose they are.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.adapters.text import TextAdapter
from engine.backlog import Pace
from engine.batcher import Batcher, Row, cost_tokens
from engine.errors import Kind, RequestError
from engine.job import Delivery, Job

_log = logging.getLogger(__name__)


class Encoder(Protocol):
    """A loaded model: engine/encoder.py, or a fake in tests."""

    dimensions: int

    def run(self, token_ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """float32[rows, dimensions] for int32[rows, tokens] and int32[rows]."""
        ...


@dataclass(eq=False, kw_only=True)
class EmbeddingJob(Job):
    """The texts of one request. Its only event is the vectors, float32[rows, dimensions], or a RequestError."""

    rows: Sequence[Sequence[int]]
    vectors: list[NDArray[np.float32]] = field(init=False)
    num_left: int = field(init=False)

    def __post_init__(self) -> None:
        self.vectors = [np.empty(0, np.float32)] * len(self.rows)
        self.num_left = len(self.rows)


class EmbeddingLane:
    """A Lane whose steps are batches of texts."""

    max_stall_s = math.inf

    def __init__(
        self,
        name: str,
        encoder: Encoder,
        adapter: TextAdapter,
        batcher: Batcher[EmbeddingJob],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.num_runs = 0
        self.run_s = 0.0
        self.pace = Pace()
        self.encoder = encoder
        self.adapter = adapter
        self.batcher = batcher
        self.clock = clock

    def add(self, job: EmbeddingJob) -> None:
        """Queue all rows of a job."""
        self.batcher.add(job, [len(row) for row in job.rows], job.arrived_at)

    def drop(self, job: EmbeddingJob) -> None:
        """Forget what has not run of a job."""
        self.batcher.drop(job)

    def ready(self, now: float) -> bool:
        """Whether a batch may run."""
        return self.batcher.ready(now)

    def decoding(self) -> bool:
        """Never: an embedding comes at once."""
        return False

    def tidy(self, now: float) -> None:
        pass  # it keeps nothing

    def wake_at(self) -> float | None:
        """When the batching window of what waits ends."""
        return self.batcher.wake_at()

    def plan(self, now: float, allowance_s: float) -> EmbeddingStep | None:
        """The next batch, kept to what the allowance lets run; rows of cancelled jobs are left out."""
        rows = self.batcher.take(self.pace.tokens_in(allowance_s))
        for job in {row.job for row in rows if row.job.cancelled}:
            self.drop(job)
        wanted = [row for row in rows if not row.job.cancelled]
        return EmbeddingStep(self, wanted) if wanted else None


class EmbeddingStep:
    """One run of the encoder."""

    def __init__(self, lane: EmbeddingLane, rows: Sequence[Row[EmbeddingJob]]) -> None:
        self._lane = lane
        self._rows = rows

    def run(self) -> list[Delivery]:
        """Encode the batch; the jobs that it completed, and those that it cannot answer."""
        lane = self._lane
        token_ids, lengths = lane.adapter.pad([row.job.rows[row.index] for row in self._rows])
        lane.num_runs += 1
        began_at = lane.clock()
        vectors = lane.encoder.run(token_ids, lengths)
        took_s = max(lane.clock() - began_at, 1e-6)
        lane.run_s += took_s
        lane.pace.observe(cost_tokens(*token_ids.shape), took_s)
        expected = (len(self._rows), lane.encoder.dimensions)
        if np.shape(vectors) != expected:
            _log.error("model %s gave a result of shape %s, not %s", lane.name, np.shape(vectors), expected)
            return self._end_all("the model gave a wrong number of vectors; the engine's log says more")
        deliveries = []
        for row, vector in zip(self._rows, vectors, strict=True):
            if not np.isfinite(vector).all():
                deliveries += self._end(row, "the model's output tensor embedding is not finite for it")
                continue
            row.job.vectors[row.index] = vector
            row.job.num_left -= 1
            if row.job.num_left == 0:
                deliveries.append((row.job, np.stack(row.job.vectors)))
        return deliveries

    def fail(self, error: BaseException) -> list[Delivery]:
        """The run raised: run the halves next; a single row is at fault and ends its job."""
        if self._lane.batcher.split(self._rows):
            return []
        return self._end(self._rows[0], f"the model failed on it ({type(error).__name__})")

    def _end(self, row: Row[EmbeddingJob], reason: str) -> list[Delivery]:
        self._lane.drop(row.job)
        message = f"input[{row.index}] could not be embedded: {reason}"
        return [(row.job, RequestError(Kind.FAILED, message, param="input"))]

    def _end_all(self, reason: str) -> list[Delivery]:
        jobs = {row.job: None for row in self._rows}
        for job in jobs:
            self._lane.drop(job)
        return [(job, RequestError(Kind.FAILED, reason)) for job in jobs]
