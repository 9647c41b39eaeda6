"""The threads where requests are made ready for a model: images decoded, text turned into tokens.

Owns how many there are, how much may wait for them, and that nothing is begun for a request that has gone. Whatever
runs here lets other threads run meanwhile, the event loop and the device's above all.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from engine.errors import Kind, RequestError

_SHORTEST_S, _LONGEST_S = 1.0, 60.0
_SMOOTHING = 0.2  # weight of the newest piece of work

P = ParamSpec("P")
T = TypeVar("T")


class Pool:
    """Runs blocking work. All methods are for one event loop."""

    def __init__(self, threads: int = 0, max_waiting: int = 1024) -> None:
        """threads: at the same time; 0: one per usable core. max_waiting: pieces of work beside those that run."""
        self.threads = threads or len(os.sched_getaffinity(0))
        self.max_waiting = max_waiting
        self.num_inside = 0
        self.num_done = 0  # this and the next only grow
        self.busy_s = 0.0
        self._usual_s = 0.0
        self._executor = ThreadPoolExecutor(self.threads, "prepare")  # starts threads as they are needed

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What ``work`` gives or raises, on one of the threads.

        Cancelled before it has begun, it never is; after that it goes on and nobody hears of it. Raises RequestError
        (503, Retry-After) when too much waits.
        """
        if self.num_inside >= self.threads + self.max_waiting:
            raise self._full()
        self.num_inside += 1
        try:
            elapsed_s, result = await asyncio.get_running_loop().run_in_executor(
                self._executor, functools.partial(_timed, work, *args, **kwargs)
            )
        finally:
            self.num_inside -= 1
        self.num_done += 1
        self.busy_s += elapsed_s
        self._usual_s += (_SMOOTHING if self.num_done > 1 else 1.0) * (elapsed_s - self._usual_s)
        return result

    def close(self) -> None:
        """End the threads when they are done; begin nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _full(self) -> RequestError:
        half_s = self.num_inside * self._usual_s / self.threads / 2
        retry_after_s = min(_LONGEST_S, max(_SHORTEST_S, half_s))
        return RequestError(
            Kind.OVERLOADED,
            f"{self.max_waiting} images and texts wait to be read, which is the most that may; try again in"
            f" {math.ceil(retry_after_s)} s",
            retry_after_s=retry_after_s,
        )


def _timed(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[float, T]:
    begun_at = time.perf_counter()
    result = work(*args, **kwargs)
    return time.perf_counter() - begun_at, result
