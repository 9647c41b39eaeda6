"""The laws of a lane under any traffic, by a virtual clock: nothing lost, duplicated, overdue or unbounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.batching.item import Item
from engine.batching.lane import BatchJob, BatchLane
from engine.batching.settings import BatchingSettings
from engine.errors import Kind, RequestError

MAX_BATCH = 6
LONGEST_HOLD_S = 0.05  # the longest window of any policy here


@dataclass(frozen=True)
class Asked:
    """One request: what it brings, and what becomes of it outside."""

    after_s: float  # since the one before
    items: list[tuple[int, int, int, bool]]  # rows, size, shape, whether the model fails on it
    level: int
    patience_s: float | None  # until its deadline
    leaves_after_s: float | None  # until its client is gone


asked = st.builds(
    Asked,
    st.floats(0, 0.03),
    st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 200), st.integers(0, 1), st.sampled_from([False] * 9 + [True])),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 2),
    st.none() | st.floats(0, 0.2),
    st.none() | st.floats(0, 0.1),
)
settings_of = st.builds(
    BatchingSettings,
    st.just(MAX_BATCH),
    st.sampled_from(["auto", 0.0, 0.01]),
    st.sampled_from(["adaptive", "rate"]),
    slo_p99_s=st.sampled_from([None, 0.05]),
    log=st.just("none"),
)


class Box:
    """A device with one lane and a model that takes 5 ms and 0.1 ms per padded unit, and keeps the rules."""

    def __init__(self, settings: BatchingSettings) -> None:
        self.now = 0.0
        self.lane = BatchLane("m", self, settings, clock=lambda: self.now)
        self.events: list[tuple[BatchJob, Any]] = []
        self.ran: list[tuple[BatchJob, int]] = []
        self.free_since = 0.0
        self.bad: set[tuple[BatchJob, int]] = set()
        self.tried: set[tuple[BatchJob, int]] = set()  # that were in a run that failed

    def gather(self, payloads: Sequence[tuple[BatchJob, int]]) -> list[tuple[BatchJob, int]]:
        return list(payloads)

    def run_gathered(self, gathered: list[tuple[BatchJob, int]]) -> list[Any]:
        return self.run(gathered)

    def run(self, payloads: Sequence[tuple[BatchJob, int]]) -> list[Any]:
        items = [job.items[index] for job, index in payloads]
        rows = sum(item.rows for item in items)
        assert rows <= MAX_BATCH or len(items) == 1
        assert len({item.shape for item in items}) == 1
        for job, _ in payloads:
            assert not job.cancelled
            assert job.deadline_at is None or self.now < job.deadline_at or self.is_retry(payloads)
        self.now += 0.005 + 1e-4 * rows * max(item.size for item in items)
        if not self.bad.isdisjoint(payloads):
            raise RuntimeError("bad")
        self.ran += payloads
        return list(payloads)

    def is_retry(self, payloads: Sequence[tuple[BatchJob, int]]) -> bool:
        """Halves run again however late it is: the culprit must be found."""
        return all(each in self.tried for each in payloads)

    def step(self) -> bool:
        """One turn of the device; False: nothing to do now."""
        if not self.lane.ready(self.now):
            return False
        step = self.lane.plan(self.now, 0.5)
        if step is None:
            return True
        if step.entries:
            first_at = min(entry.job.arrived_at for entry in step.entries)
            assert self.now - max(first_at, self.free_since) <= LONGEST_HOLD_S + 1e-9 or step.is_retry
        try:
            self.events += step.run()
        except RuntimeError as error:
            self.tried |= {(entry.job, entry.index) for entry in step.entries}
            self.events += step.fail(error)
        self.free_since = self.now
        return True


@given(st.lists(asked, min_size=1, max_size=25), settings_of)
def test_nothing_is_lost_duplicated_overdue_or_unbounded(requests: list[Asked], settings: BatchingSettings) -> None:
    box = Box(settings)
    jobs: list[BatchJob] = []
    coming: list[tuple[float, int, str]] = []
    at = 0.0
    for index, each in enumerate(requests):
        at += each.after_s
        job = BatchJob(
            deliver=lambda event: None,
            arrived_at=at,
            items=[],
            level=each.level,
            deadline_at=None if each.patience_s is None else at + each.patience_s,
            noun="input",
        )
        job.items = [Item((job, place), rows, size, shape) for place, (rows, size, shape, _) in enumerate(each.items)]
        job.__post_init__()
        box.bad |= {(job, place) for place, item in enumerate(each.items) if item[3]}
        jobs.append(job)
        coming.append((at, index, "come"))
        if each.leaves_after_s is not None:
            coming.append((at + each.leaves_after_s, index, "leave"))
    coming.sort(reverse=True)
    while True:
        while coming and coming[-1][0] <= box.now:
            _, index, what = coming.pop()
            if what == "come":
                box.lane.add(jobs[index])
            else:
                jobs[index].cancelled = True
                box.lane.drop(jobs[index])
        if box.step():
            continue
        wake_at = box.lane.wake_at()
        following = min(coming[-1][0] if coming else math.inf, math.inf if wake_at is None else wake_at)
        if following == math.inf:
            break
        assert following > box.now
        box.now = following

    box.lane.close()
    assert box.lane.batcher.num_rows == 0
    assert len(box.ran) == len(set(box.ran))
    for job, each in zip(jobs, requests, strict=True):
        events = [event for whose, event in box.events if whose is job]
        if job.cancelled and not events:
            continue
        [event] = events
        if isinstance(event, RequestError):
            assert event.kind in (Kind.FAILED, Kind.DEADLINE)
            assert event.kind is Kind.DEADLINE or any(fails for *_, fails in each.items)
            assert event.kind is Kind.FAILED or each.patience_s is not None
        else:
            assert event == [(job, place) for place in range(len(each.items))]
            assert {(job, place) for place in range(len(each.items))} <= set(box.ran)
