"""Steps of one lane beside each other: as many as it takes, never with another lane's, and none is forgotten."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from engine.batching.item import Item
from engine.batching.job import BatchJob
from engine.batching.lane import BatchLane
from engine.batching.settings import BatchingSettings
from engine.errors import RequestError
from engine.job import Job
from tests.engine.test_device import CountingLane, ask, running
from tests.fakes_engine import until


class Gate:
    """A model that runs beside itself and shows who is inside; runs end when they are let through."""

    width = 2

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.opened = threading.Semaphore(0)
        self.beside: list[list[Any]] = []
        self.alone: list[list[Any]] = []
        self._lock = threading.Lock()

    def run(self, payloads: Sequence[Any]) -> list[Any]:
        self.alone.append(list(payloads))
        return self._answer(payloads)

    def run_beside(self, payloads: Sequence[Any]) -> list[Any]:
        with self._lock:
            self.beside.append(list(payloads))
            self.inside += 1
            self.most = max(self.most, self.inside)
        assert self.opened.acquire(timeout=60)
        with self._lock:
            self.inside -= 1
        return self._answer(payloads)

    def _answer(self, payloads: Sequence[Any]) -> list[Any]:
        if "bad" in payloads:
            raise RuntimeError("bad")
        return list(payloads)


def lane_of(model: Any, max_batch: int = 4) -> Any:
    return BatchLane("m", model, BatchingSettings(max_batch=max_batch, window_s=0.0, log="none"))


def submit(device: Any, lane: Any, *payloads: Any) -> tuple[Job, asyncio.Future[Any]]:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    items = [Item(payload) for payload in payloads]
    job = BatchJob(deliver=answer.set_result, arrived_at=0.0, items=items)
    device.submit(lane, job)
    return job, answer


async def test_what_waits_is_shared_by_runs_that_go_on_beside_each_other() -> None:
    model = Gate()
    lane = lane_of(model)
    async with running(lane) as device:
        _, answer = submit(device, lane, 1, 2, 3, 4, 5, 6, 7)
        await until(lambda: model.inside == 2)
        assert sorted(map(len, model.beside)) == [3, 4]  # a half, and as many as fit a run
        assert device.busy_s(math.inf) > 0
        model.opened.release(9)
        assert await answer == [1, 2, 3, 4, 5, 6, 7]
        assert model.most == 2
        await until(lambda: device.busy_s(math.inf) == 0)
        assert lane.num_runs == device.num_steps == 2


async def test_a_single_row_on_a_free_device_has_all_of_it() -> None:
    model = Gate()
    lane = lane_of(model)
    async with running(lane) as device:
        assert await submit(device, lane, 1)[1] == [1]
    assert (model.alone, model.beside) == ([[1]], [])


async def test_another_lane_waits_for_them_and_they_for_it() -> None:
    model, other = Gate(), CountingLane("other")
    lane = lane_of(model)
    seen: list[int] = []
    other.do = lambda job: seen.append(model.inside)
    async with running(lane, other) as device:
        _, first = submit(device, lane, 1, 2)
        await until(lambda: model.inside == 2)
        _, second = ask(device, other)
        assert await device.ping(30)  # it knows of the other lane's job, and has not run it
        assert not second.done()
        model.opened.release(2)
        await asyncio.gather(first, second)
    assert seen == [0]


async def test_a_run_that_fails_is_halved_until_the_culprit_stands_alone() -> None:
    model = Gate()
    model.opened.release(99)
    lane = lane_of(model)
    async with running(lane) as device:
        answers = [submit(device, lane, payload)[1] for payload in (1, 2, 3, "bad", 5, 6)]
        told = await asyncio.gather(*answers)
    assert [each for each in told if not isinstance(each, RequestError)] == [[1], [2], [3], [5], [6]]
    assert isinstance(told[3], RequestError)


async def test_to_detach_a_lane_and_to_stop_wait_for_its_runs() -> None:
    model = Gate()
    lane = lane_of(model)
    async with running(lane) as device:
        job, _ = submit(device, lane, 1, 2)
        await until(lambda: model.inside == 2)
        device.cancel(lane, job)
        detaching = asyncio.create_task(device.detach(lane, 60))
        assert await device.ping(30)
        assert not detaching.done()
        model.opened.release(2)
        assert await detaching
        assert model.inside == 0


async def test_a_job_that_was_cancelled_in_the_air_hears_nothing() -> None:
    model = Gate()
    lane = lane_of(model)
    async with running(lane) as device:
        job, gone = submit(device, lane, 1, 2)
        await until(lambda: model.inside == 2)
        device.cancel(lane, job)
        model.opened.release(2)
        await until(lambda: device.num_steps == 2)
        assert await device.ping(30)
        assert not gone.done()


@pytest.mark.parametrize(
    ("waiting", "aloft", "taken"), [(2, 0, 1), (5, 0, 3), (9, 0, 4), (3, 1, 3), (9, 1, 4), (1, 1, 1)]
)
def test_a_run_takes_its_share_of_what_waits(waiting: int, aloft: int, taken: int) -> None:
    lane = lane_of(Gate())
    lane.add(BatchJob(deliver=lambda event: None, arrived_at=0.0, items=[Item(n) for n in range(waiting)]))
    assert lane.ready(1.0)
    step = lane.plan_beside(1.0, aloft)
    assert step is not None
    assert len(step.entries) == taken
    assert step.beside
