"""One request's work on a batching lane, awaited on the event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from engine.batching.item import Item
from engine.batching.lane import BatchJob, BatchLane
from engine.batching.settings import LEVEL_NAMES
from engine.batching.waiting import NORMAL
from engine.errors import Kind, RequestError
from engine.job import Job, Lane


class Runner(Protocol):
    """What a request needs of engine/device.py."""

    def submit(self, lane: Lane, job: Job) -> None:
        """Queue a job."""
        ...

    def cancel(self, lane: Lane, job: Job) -> None:
        """Nobody wants this job any more."""
        ...


async def run_on(
    device: Runner,
    lane: BatchLane,
    items: Sequence[Item],
    *,
    level: int = NORMAL,
    deadline_at: float | None = None,
    noun: str | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Any]:
    """The results of the items, at least one, in their order.

    level: 0 high, 1 normal, 2 low. deadline_at: by ``clock``, in seconds. noun: what an error calls an item. Raises
    RequestError, 503 with retry_after_s when the level's places are taken; cancelling the call takes the job out of
    the queue.
    """
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def deliver(event: Any) -> None:
        if not done.done():
            done.set_result(event)

    units = sum(item.rows * item.size for item in items)
    _enter(lane, level, units)
    try:
        job = BatchJob(
            deliver=deliver, arrived_at=clock(), items=items, level=level, deadline_at=deadline_at, noun=noun
        )
        device.submit(lane, job)
        try:
            event = await done
        except asyncio.CancelledError:
            device.cancel(lane, job)
            raise
    finally:
        _leave(lane, level, units)
    if isinstance(event, RequestError):
        raise event
    results: list[Any] = event
    return results


def _enter(lane: BatchLane, level: int, units: int) -> None:
    """Take a place of the level's."""
    places = lane.places[level]
    if places is not None and (retry_after_s := places.enter()) is not None:
        raise RequestError(
            Kind.OVERLOADED,
            f"the model {lane.name!r} has no place for requests of {LEVEL_NAMES[level]} priority ({places.running}"
            f" running, {places.queue} waiting); try again in {math.ceil(retry_after_s)} s",
            retry_after_s=retry_after_s,
        )
    lane.num_units += units


def _leave(lane: BatchLane, level: int, units: int) -> None:
    places = lane.places[level]
    lane.num_units -= units
    if places is not None:
        places.leave()
