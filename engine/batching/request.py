"""One request's work on a batching lane, awaited on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from engine.batching.batcher import NORMAL
from engine.batching.item import Item
from engine.batching.lane import BatchJob, BatchLane
from engine.errors import RequestError
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
    RequestError; cancelling the call takes the job out of the queue.
    """
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def deliver(event: Any) -> None:
        if not done.done():
            done.set_result(event)

    job = BatchJob(deliver=deliver, arrived_at=clock(), items=items, level=level, deadline_at=deadline_at, noun=noun)
    device.submit(lane, job)
    try:
        event = await done
    except asyncio.CancelledError:
        device.cancel(lane, job)
        raise
    if isinstance(event, RequestError):
        raise event
    results: list[Any] = event
    return results
