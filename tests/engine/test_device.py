"""The device's thread: steps in turn, commands between them, and failures that stay where they belong."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from engine.device import Device
from engine.errors import RequestError
from engine.job import Delivery, Job
from tests.fakes_engine import until


class CountingLane:
    """Runs each job once; the answer is what ``do`` makes of it."""

    max_stall_s = math.inf
    width = 1

    def __init__(self, name: str = "lane") -> None:
        self.name = name
        self.run_s = 0.0
        self.queue: list[Job] = []
        self.dropped: list[Job] = []
        self.num_tidied = 0
        self.opens_at: float | None = None
        self.do: Any = lambda job: "done"
        self.add_fails = False
        self.plan_fails = False

    def add(self, job: Job) -> None:
        if self.add_fails:
            raise RuntimeError("cannot add")
        self.queue.append(job)

    def drop(self, job: Job) -> None:
        self.dropped.append(job)
        with contextlib.suppress(ValueError):
            self.queue.remove(job)

    def ready(self, now: float) -> bool:
        return bool(self.queue) and (self.opens_at is None or now >= self.opens_at)

    def decoding(self) -> bool:
        return False

    def tidy(self, now: float) -> None:
        self.num_tidied += 1

    def wake_at(self) -> float | None:
        return self.opens_at if self.queue else None

    def plan(self, now: float, allowance_s: float) -> CountingStep:
        if self.plan_fails:
            raise RuntimeError("cannot plan")
        return CountingStep(self, self.queue.pop(0))


class CountingStep:
    def __init__(self, lane: CountingLane, job: Job) -> None:
        self.lane, self.job = lane, job

    def run(self) -> Sequence[Delivery]:
        return [(self.job, self.lane.do(self.job))]

    def fail(self, error: BaseException) -> Sequence[Delivery]:
        return [(self.job, error)]


@contextlib.asynccontextmanager
async def running(*lanes: CountingLane) -> AsyncIterator[Device]:
    device = Device("test", lanes, asyncio.get_running_loop())
    device.start()
    try:
        yield device
    finally:
        assert await device.stop(10)


def ask(device: Device, lane: CountingLane) -> tuple[Job, asyncio.Future[Any]]:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    job = Job(deliver=answer.set_result, arrived_at=0.0)
    device.submit(lane, job)
    return job, answer


async def test_the_time_inside_runs_and_beside_them_is_counted() -> None:
    lane = CountingLane()

    def work(job: Job) -> str:
        lane.run_s += 1000.0
        return "done"

    lane.do = work
    async with running(lane) as device:
        assert await ask(device, lane)[1] == await ask(device, lane)[1] == "done"
        assert await device.ping(30)
        assert device.occupancy.run_s == 2000.0
        assert device.occupancy.host_s == 0.0  # never negative, even when a lane counts too much


async def test_what_planning_does_on_the_device_counts_as_run() -> None:
    lane = CountingLane()
    plan = lane.plan

    def copy_and_plan(now: float, allowance_s: float) -> CountingStep:
        lane.run_s += 1000.0
        return plan(now, allowance_s)

    lane.plan = copy_and_plan  # type: ignore[method-assign]
    async with running(lane) as device:
        assert await ask(device, lane)[1] == "done"
        assert await device.ping(30)
        assert device.occupancy.run_s == 1000.0


async def test_lanes_tidy_up_when_nothing_is_to_be_run() -> None:
    lane = CountingLane()
    async with running(lane) as device:
        await until(lambda: lane.num_tidied == 1)
        assert await ask(device, lane)[1] == "done"
        await until(lambda: lane.num_tidied == 2)


async def test_what_a_step_says_reaches_its_job() -> None:
    lane, other = CountingLane("a"), CountingLane("b")
    other.do = lambda job: "other"
    async with running(lane, other) as device:
        answers = [ask(device, each)[1] for each in (lane, other, lane)]
        assert await asyncio.gather(*answers) == ["done", "other", "done"]
        assert device.num_steps == 3


async def test_E10_a_step_that_raises_fails_its_jobs_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    lane = CountingLane()

    def fail(job: Job) -> None:
        raise RuntimeError("once")

    lane.do = fail
    async with running(lane) as device:
        assert isinstance(await ask(device, lane)[1], RuntimeError)
        lane.do = lambda job: "done"
        assert await ask(device, lane)[1] == "done"
    assert "once" in caplog.text


async def test_a_job_that_cannot_be_queued_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    lane = CountingLane()
    async with running(lane) as device:
        lane.add_fails = True
        assert isinstance(await ask(device, lane)[1], RequestError)
        lane.add_fails = False
        assert await ask(device, lane)[1] == "done"
    assert "cannot add" in caplog.text


async def test_a_lane_that_cannot_plan_makes_the_device_say_that_it_is_broken(caplog: pytest.LogCaptureFixture) -> None:
    lane = CountingLane()
    lane.plan_fails = True
    async with running(lane) as device:
        ask(device, lane)
        await until(lambda: device.broken is not None)
        assert "cannot plan" in str(device.broken)
        assert not await device.ping(0.01)
    assert "must be replaced" in caplog.text


@pytest.mark.parametrize("when", ["before", "during"])
async def test_O02_nothing_is_delivered_to_a_cancelled_job(when: str) -> None:
    lane = CountingLane()
    entered, leave = threading.Event(), threading.Event()

    def wait(job: Job) -> str:
        entered.set()
        assert leave.wait(30)
        return "done"

    lane.do = wait
    async with running(lane) as device:
        first, first_answer = ask(device, lane)
        await until(entered.is_set)
        second, second_answer = ask(device, lane)
        gone, answer = (first, first_answer) if when == "during" else (second, second_answer)
        device.cancel(lane, gone)
        leave.set()
        assert await ask(device, lane)[1] == "done"
        assert await device.ping(30)
        assert not answer.done()
        assert lane.dropped == [gone]


async def test_a_delivery_that_raises_does_not_cost_the_others_theirs(caplog: pytest.LogCaptureFixture) -> None:
    lane = CountingLane()
    async with running(lane) as device:
        _, answer = ask(device, lane)
        answer.cancel()  # set_result will raise
        assert await ask(device, lane)[1] == "done"
    assert "could not be delivered" in caplog.text


async def test_O05_a_run_that_hangs_is_seen_by_its_length_and_by_a_ping() -> None:
    lane = CountingLane()
    entered, leave = threading.Event(), threading.Event()
    lane.do = lambda job: entered.set() or leave.wait(30)
    async with running(lane) as device:
        assert device.busy_s(time.monotonic()) == 0.0
        _, answer = ask(device, lane)
        await until(entered.is_set)
        assert device.busy_s(time.monotonic() + 60) > 59
        assert not await device.ping(0.05)
        leave.set()
        await answer
        assert await device.ping(30)
        assert device.busy_s(time.monotonic()) == 0.0


async def test_a_window_that_ends_wakes_the_device() -> None:
    lane = CountingLane()
    lane.opens_at = time.monotonic() + 0.05
    async with running(lane) as device:
        assert await ask(device, lane)[1] == "done"
        assert time.monotonic() >= lane.opens_at
