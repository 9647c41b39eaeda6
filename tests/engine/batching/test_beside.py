"""Runs of a lane beside each other, begun and ended in any order: every job hears once, and what is true."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.arbiter import IDLE_ALLOWANCE_S
from engine.batching.item import Item
from engine.batching.job import BatchJob, WrongResult
from engine.batching.lane import BatchLane
from engine.batching.settings import BatchingSettings
from engine.batching.step import BatchStep
from engine.errors import RequestError

MAX_BATCH, WIDTH = 4, 3

#: What happens next: a request with these items, each true or bad; a turn of the device; the end of one of the runs
#: that are in the air; a client that leaves.
happening = (
    st.tuples(st.just("come"), st.lists(st.booleans(), min_size=1, max_size=9))
    | st.tuples(st.just("turn"), st.just(0))
    | st.tuples(st.sampled_from(["land", "leave"]), st.integers(0, 20))
)


class Box:
    """A device whose runs end when the test says so."""

    width = WIDTH

    def __init__(self, *, divided: bool = True) -> None:
        self.now = 0.0
        settings = BatchingSettings(MAX_BATCH, 0.0, log="none")
        self.lane = BatchLane("m", self, settings, clock=lambda: self.now, divided=divided)
        self.jobs: list[BatchJob] = []
        self.aloft: list[BatchStep] = []
        self.heard: list[tuple[Any, Any]] = []
        self.answered: Counter[Any] = Counter()

    def run(self, payloads: Sequence[Any]) -> list[Any]:
        assert not self.aloft  # with all cores, so alone
        return self.run_beside(payloads)

    def run_beside(self, payloads: Sequence[Any]) -> list[Any]:
        assert 0 < len(payloads) <= MAX_BATCH
        if not all(good for *_, good in payloads):
            raise RuntimeError("bad")
        self.answered.update(payloads)
        return list(payloads)

    def come(self, goods: Sequence[bool]) -> None:
        number = len(self.jobs)
        items = [Item((number, place, good)) for place, good in enumerate(goods)]
        self.jobs.append(BatchJob(deliver=lambda event: None, arrived_at=self.now, items=items, noun="input"))
        self.lane.add(self.jobs[-1])

    def turn(self) -> bool:
        """False: nothing could begin."""
        if len(self.aloft) == WIDTH or not self.lane.ready(self.now):
            return False
        step = self.lane.plan_beside(self.now, len(self.aloft))
        if step is not None and step.beside:
            self.aloft.append(step)
        elif step is not None:
            self.end(step, whole=True)
        return True

    def end(self, step: BatchStep, *, whole: bool = False) -> None:
        self.now += 0.001
        try:
            if whole:
                self.heard += step.run()
            else:
                step.compute()
                self.heard += step.finish()
        except RuntimeError as error:
            self.heard += step.fail(error)

    def leave(self, job: BatchJob) -> None:
        job.cancelled = True
        self.lane.drop(job)


@given(st.lists(happening, max_size=40))
def test_every_job_hears_once_and_what_is_true(happenings: list[tuple[str, Any]]) -> None:
    box = Box()
    for what, value in happenings:
        box.now += 0.001
        if what == "come":
            box.come(value)
        elif what == "turn":
            box.turn()
        elif what == "land" and box.aloft:
            box.end(box.aloft.pop(value % len(box.aloft)))
        elif what == "leave" and box.jobs:
            box.leave(box.jobs[value % len(box.jobs)])
    for _ in range(10_000):
        if box.aloft:
            box.end(box.aloft.pop())
        elif not box.turn():
            break
    assert box.lane.batcher.num_rows == 0
    assert not box.lane.aloft
    assert box.lane.wake_at() in (None, math.inf)
    heard = Counter(id(job) for job, _ in box.heard)
    assert max(heard.values(), default=1) == 1
    assert max(box.answered.values(), default=1) == 1  # no item ran well twice
    told = {id(job): event for job, event in box.heard}
    for job in box.jobs:
        if job.cancelled:
            continue
        if all(item.payload[2] for item in job.items):
            assert told[id(job)] == [item.payload for item in job.items]
        else:
            assert isinstance(told[id(job)], RequestError)


def test_a_job_whose_parts_all_end_wrong_hears_and_counts_once() -> None:
    box = Box()

    def run_beside(payloads: Sequence[Any]) -> list[Any]:
        raise WrongResult("the output has one row")

    box.run_beside = run_beside  # type: ignore[method-assign]
    box.come([True, True, True])
    while box.turn():
        pass
    assert len(box.aloft) == WIDTH
    for step in box.aloft:
        box.end(step)
    assert [job for job, _ in box.heard] == box.jobs
    assert box.lane.tally.num_failed == 1


@pytest.mark.parametrize("together", range(1, WIDTH + 1))
def test_a_run_took_what_it_had_of_cores_that_all_share(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was alone had them all, though there may be more: else batches would seem to be cheap, and be waited
    for."""
    box = Box(divided=False)
    observed: list[float] = []
    monkeypatch.setattr(box.lane.pace, "observe", lambda rows, size, elapsed_s: observed.append(elapsed_s))
    for number in range(together):
        job = BatchJob(deliver=lambda event: None, arrived_at=0.0, items=[Item((number, 0, True), rows=MAX_BATCH)])
        box.lane.add(job)
    while box.turn():
        pass
    assert len(box.aloft) == together
    for step in box.aloft:
        step.compute()
        step._ended_at = step._began_at + 0.001 * together  # a millisecond of all cores each
    for step in box.aloft:
        box.heard += step.finish()
    assert observed == pytest.approx([0.001] * together)


def test_runs_beside_each_other_are_no_longer_than_a_turn() -> None:
    """Whoever comes meanwhile for another model waits for them all, and each of them takes ``WIDTH`` times as long as
    it would alone."""
    box = Box()
    lane = box.lane = BatchLane("m", box, BatchingSettings(64, 0.0, log="none"), clock=lambda: box.now)
    for _ in range(10):
        for rows in (1, 16):
            lane.pace.observe(rows, 1, 0.1 + 0.01 * rows)
    box.come([True] * 64 * WIDTH)
    while box.turn():
        pass
    taken = [len(step.entries) for step in box.aloft]
    assert len(taken) == WIDTH
    assert all(rows > 1 and WIDTH * lane.pace.run_s(rows, 1) <= IDLE_ALLOWANCE_S for rows in taken)
