"""The lane's steps with a made-up model: whose result is whose, and what a failed run means."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from engine.batching.item import Item
from engine.batching.lane import BatchJob, BatchLane
from engine.batching.settings import BatchingSettings, LevelSettings
from engine.batching.waiting import LOW
from engine.batching.window import Closing, Forming, Traffic
from engine.errors import Kind, RequestError
from engine.job import Delivery
from engine.wire.metrics import OF_BATCHES

BAD = 13  # the payload that makes the model raise


class FakeModel:
    """An item's result is its payload, so a result tells whose it is."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.distort: Callable[[list[Any]], list[Any]] = lambda results: results

    def run(self, payloads: Sequence[int]) -> list[Any]:
        self.batches.append(list(payloads))
        if BAD in payloads:
            raise RuntimeError("bad item")
        return self.distort(list(payloads))


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


class Clock:
    """It goes on by a millisecond whenever somebody looks, or as a test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def settings() -> BatchingSettings:
    return BatchingSettings(max_batch=8, window_s=0.0)


@pytest.fixture
def lane(model: FakeModel, clock: Clock, settings: BatchingSettings) -> BatchLane:
    return BatchLane("m", model, settings, clock=clock)


def make_job(
    *payloads: int, at: float = 0.0, level: int = 1, deadline_at: float | None = None, noun: str | None = "input"
) -> BatchJob:
    items = [Item(payload) for payload in payloads]
    return BatchJob(
        deliver=lambda event: None, arrived_at=at, items=items, level=level, deadline_at=deadline_at, noun=noun
    )


def run_all(lane: BatchLane) -> list[Delivery]:
    """What a device does, until nothing is ready."""
    deliveries: list[Delivery] = []
    while lane.ready(now := lane.clock()):
        step = lane.plan(now, math.inf)
        if step is None:
            continue
        try:
            deliveries += step.run()
        except RuntimeError as error:
            deliveries += step.fail(error)
    return deliveries


def test_results_go_back_to_their_items(lane: BatchLane, model: FakeModel) -> None:
    first, second = make_job(2, 7), make_job(5)
    lane.add(first)
    lane.add(second)
    assert dict(run_all(lane)) == {first: [2, 7], second: [5]}
    assert model.batches == [[2, 7, 5]]
    assert lane.num_runs == 1
    assert not lane.decoding()


def test_a_job_of_several_batches_is_delivered_once_whole(lane: BatchLane, model: FakeModel) -> None:
    payloads = [payload for payload in range(21) if payload != BAD]
    job = make_job(*payloads)
    lane.add(job)
    assert run_all(lane) == [(job, payloads)]
    assert len(model.batches) == 3


def test_O01_one_bad_item_fails_its_job_alone(lane: BatchLane, model: FakeModel) -> None:
    good = [make_job(payload) for payload in range(7)]
    bad = make_job(1, BAD)
    for job in [*good[:4], bad, *good[4:]]:
        lane.add(job)
    answers = dict(run_all(lane))
    assert all(answers[job] == [payload] for payload, job in enumerate(good))
    error = answers[bad]
    assert isinstance(error, RequestError)
    assert (error.kind, error.param) == (Kind.FAILED, "input")
    assert error.message == "input[1] failed: the model failed on it (RuntimeError); the engine's log says more"
    assert len(model.batches) <= 2 * 9
    after = [make_job(5) for _ in range(20)]
    for job in after:
        lane.add(job)
    assert len(run_all(lane)) == 20


def test_O01_several_bad_items_of_one_job_end_it_once(lane: BatchLane) -> None:
    bad, good = make_job(BAD, 1, BAD, 2, BAD), make_job(3)
    lane.add(bad)
    lane.add(good)
    answers = run_all(lane)
    assert sorted(id(job) for job, _ in answers) == sorted([id(bad), id(good)])
    assert dict(answers)[good] == [3]


@pytest.mark.parametrize("distort", [lambda results: results[:-1], lambda results: [*results, 1], lambda results: []])
def test_O08_a_wrong_number_of_results_fails_the_batch(
    lane: BatchLane, model: FakeModel, distort: Callable[[list[Any]], list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    model.distort = distort
    jobs = [make_job(payload) for payload in range(8)]
    for job in jobs:
        lane.add(job)
    answers = run_all(lane)
    assert [job for job, _ in answers] == jobs
    assert all(isinstance(error, RequestError) and error.kind is Kind.FAILED for _, error in answers)
    assert len(model.batches) == 1
    assert "results for 8 items" in caplog.text


def test_an_error_in_place_of_a_result_fails_its_job_alone(lane: BatchLane, model: FakeModel) -> None:
    error = RequestError(Kind.INVALID, "no")
    model.distort = lambda results: [error if result == 7 else result for result in results]
    good, bad, alone = make_job(1), make_job(2, 7, 4), make_job(7, noun=None)
    for job in (bad, good, alone):
        lane.add(job)
    answers = dict(run_all(lane))
    assert (answers[bad].message, answers[bad].kind) == ("input[1] failed: no", Kind.INVALID)
    assert answers[good] == [1]
    assert answers[alone] is error


def test_O02_cancelled_jobs_are_left_out_when_the_batch_is_formed(lane: BatchLane, model: FakeModel) -> None:
    gone, stays = make_job(1, 2), make_job(3)
    lane.add(gone)
    lane.add(stays)
    gone.cancelled = True  # the command to drop it is still on its way
    assert [job for job, _ in run_all(lane)] == [stays]
    assert model.batches == [[3]]
    lane.add(gone)
    assert lane.plan(lane.clock(), math.inf) is None
    assert not lane.ready(lane.clock())


def test_overdue_jobs_are_told_so_and_do_not_run(lane: BatchLane, model: FakeModel) -> None:
    late, in_time = make_job(1, deadline_at=4.0), make_job(BAD, deadline_at=6.0)
    lane.add(late)
    lane.add(in_time)
    step = lane.plan(5.0, math.inf)
    assert step is not None
    with pytest.raises(RuntimeError):
        step.run()
    answers = dict(step.fail(RuntimeError()))
    assert answers[late].kind is Kind.DEADLINE
    assert answers[in_time].kind is Kind.FAILED
    assert model.batches == [[BAD]]
    lane.add(late)
    step = lane.plan(7.0, math.inf)
    assert step is not None
    assert [job for job, _ in step.run()] == [late]


def test_the_allowance_bounds_a_batch(lane: BatchLane, model: FakeModel) -> None:
    lane.add(make_job(*range(8)))
    run_all(lane)
    lane.add(make_job(*range(4)))
    step = lane.plan(lane.clock(), lane.pace.run_s(2, 1) * 1.001)
    assert step is not None
    step.run()
    assert model.batches[-1] == [0, 1]


@pytest.fixture
def held(model: FakeModel, clock: Clock) -> BatchLane:
    """A lane whose plain rule waits for three at 200 requests per second."""
    lane = BatchLane("m", model, BatchingSettings(max_batch=8, policy="rate", log="every"), clock=clock)
    for turn in range(40):
        lane.add(make_job(1, at=turn * 0.005))
        clock.now = turn * 0.005
        run_all(lane)
    return lane


def test_a_held_batch_runs_when_its_window_closes_and_says_so(
    held: BatchLane, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    run_all_later(held, clock)
    caplog.set_level("INFO")
    job = make_job(7, at=1.0)
    clock.now = 1.0
    held.add(job)
    assert not held.ready(1.0)
    at = held.wake_at()
    assert at == pytest.approx(1.015, abs=1e-3)
    assert held.ready(at)
    step = held.plan(at, math.inf)
    assert step is not None
    clock.now = at
    assert step.run() == [(job, [7])]
    assert job.held_s == pytest.approx(at - 1.0)
    assert "pending_requests=1 actual_batch_size=1 trigger=window trigger_threshold=15000 waited_us=1" in caplog.text


def run_all_later(lane: BatchLane, clock: Clock) -> None:
    """Let windows pass until nothing waits."""
    while (at := lane.wake_at()) is not None:
        clock.now = max(clock.now, at)
        run_all(lane)


def test_a_level_has_a_timeout_of_its_own(model: FakeModel, clock: Clock) -> None:
    levels = LevelSettings(), LevelSettings(), LevelSettings(timeout_s=0.5)
    lane = BatchLane("m", model, BatchingSettings(levels=levels), clock=clock)
    low, normal = make_job(1, level=LOW), make_job(2)
    lane.add(low)
    lane.add(normal)
    clock.now = 0.6
    answers = dict(run_all(lane))
    assert answers[normal] == [2]
    assert answers[low].kind is Kind.OVERLOADED
    assert "0.5 s, the timeout of its level; try again in 1 s" in answers[low].message
    assert lane.statistics()["batch_overdue_total"] == 1


def test_every_number_is_explained_on_the_metrics_page(model: FakeModel) -> None:
    lane = BatchLane("m", model, BatchingSettings(slo_p99_s=1.0))
    assert lane.statistics().keys() - OF_BATCHES.keys() == {"batch_rows_waiting"}  # its name says it
    assert OF_BATCHES.keys() <= lane.statistics().keys()


def test_the_numbers_of_a_lane(lane: BatchLane, model: FakeModel) -> None:
    for job in (make_job(1, 2), make_job(3), make_job(BAD)):
        lane.add(job)
    run_all(lane)
    numbers = lane.statistics()
    assert (numbers["batch_requests_total"], numbers["batch_failed_total"]) == (2, 1)
    assert numbers["batch_rows_total"] == sum(map(len, model.batches))
    assert numbers["batch_run_seconds_total"] == pytest.approx(0.001 * len(model.batches))
    assert sum(runs.count for runs in lane.tally.by_rows.values()) == len(model.batches)


class Reckless:
    """A policy that waits for 15 ms whatever the SLO leaves."""

    def close(self, forming: Forming, traffic: Traffic) -> Closing:
        return Closing(forming.since + (0.015 if forming.may_wait else 0.0), "window", 15000)


def test_an_slo_that_waiting_breaks_shuts_the_window(
    model: FakeModel, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    lane = BatchLane("m", model, BatchingSettings(max_batch=8, slo_p99_s=0.02), clock=clock)
    lane.batcher.policy = Reckless()
    model.distort = lambda results: clock.pass_by(0.012) or results

    def serve() -> float:
        job = make_job(1, at=clock.now)
        lane.add(job)
        run_all(lane)
        run_all_later(lane, clock)
        return job.held_s

    held_s = [serve() for _ in range(10)]
    assert held_s[0] == pytest.approx(0.015, abs=0.002)
    assert held_s[-1] == 0
    assert caplog.text.count("waiting for company breaks its slo (p99 20 ms): the window is zero") == 1
    numbers = lane.statistics()
    assert (numbers["slo_broken_by_waiting_total"], numbers["slo_window_shut"]) == (3, 1)


class GatheringModel(FakeModel):
    """It notes what was gathered ahead, and runs that."""

    def __init__(self) -> None:
        super().__init__()
        self.gathered: list[list[int]] = []

    def gather(self, payloads: Sequence[int]) -> list[int]:
        self.gathered.append(list(payloads))
        if 99 in payloads:
            raise ValueError("no")
        return list(payloads)

    def run_gathered(self, gathered: list[int]) -> list[Any]:
        return self.run(gathered)


@pytest.fixture
def gathering(settings: BatchingSettings, clock: Clock) -> Iterator[tuple[GatheringModel, BatchLane]]:
    model = GatheringModel()
    lane = BatchLane("m", model, settings, clock=clock)
    yield model, lane
    lane.close()


def test_exactly_one_full_batch_is_made_ready_while_the_device_runs(
    gathering: tuple[GatheringModel, BatchLane],
) -> None:
    model, lane = gathering
    jobs = [make_job(payload) for payload in range(100, 130)]
    for job in jobs:
        lane.add(job)
    first = lane.plan(lane.clock(), math.inf)
    assert first is not None
    first.run()
    assert model.batches == [list(range(100, 108))]
    assert lane.batcher.num_rows == 30 - 8 - 8  # one more batch has left the queue
    assert lane.wake_at() == 0.0
    answers = run_all(lane)
    assert model.batches == [list(range(*ends)) for ends in ((100, 108), (108, 116), (116, 124), (124, 130))]
    assert model.gathered == model.batches[1:3]  # what is not full is formed when the device is free
    assert len(answers) == 22
    assert lane.statistics()["batch_ahead_total"] == 2


def test_who_leaves_or_is_late_after_the_batch_was_made_ready_does_not_run(
    gathering: tuple[GatheringModel, BatchLane], clock: Clock
) -> None:
    model, lane = gathering
    jobs = [make_job(payload, deadline_at=5.0 if payload == 110 else None) for payload in range(100, 116)]
    for job in jobs:
        lane.add(job)
    first = lane.plan(lane.clock(), math.inf)
    assert first is not None
    first.run()
    lane.add(make_job(7, at=clock.now))
    jobs[9].cancelled = True
    lane.drop(jobs[9])
    clock.now = 6.0
    answers = dict(run_all(lane))
    assert model.batches[1] == [108, 111, 112, 113, 114, 115]
    assert jobs[9] not in answers
    assert answers[jobs[10]].kind is Kind.DEADLINE
    assert len(answers) == 6 + 1 + 1


def test_O01_what_cannot_be_gathered_fails_alone(gathering: tuple[GatheringModel, BatchLane]) -> None:
    _, lane = gathering
    jobs = [make_job(payload) for payload in [*range(100, 108), *range(92, 100)]]
    for job in jobs:
        lane.add(job)
    answers: list[Delivery] = []
    while lane.ready(now := lane.clock()):
        step = lane.plan(now, math.inf)
        assert step is not None
        try:
            answers += step.run()
        except (ValueError, RuntimeError) as error:
            answers += step.fail(error)
    assert len(answers) == 16
    assert all(not isinstance(result, RequestError) for _, result in answers)  # run by run, it works
