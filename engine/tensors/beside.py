"""Whether a graph's runs are worth having beside each other: tried when it is loaded.

Runs at the same time share the threads of one session. Most graphs gain, as one run's threads wait for each other at
every operator; some lose more by crowding the cores. What a run that is handed to a thread of its own costs on the way,
a twentieth of a millisecond and more, is only worth it for long ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

LONG_S = 2e-3  # a run of a row
MIN_GAIN = 1.05  # times as many rows a second
_NUM_TRIES = 3  # of which the fastest counts: the box does other things, too


def width_of(row_s: float, beside_s: float, width: int) -> int:
    """``width``, or 1 where it does not pay. row_s: a run of a row; beside_s: ``width`` of them at once."""
    return width if row_s >= LONG_S and width * row_s >= MIN_GAIN * beside_s else 1


def try_beside(run: Callable[[], object], width: int, *, clock: Callable[[], float] = time.perf_counter) -> int:
    """How many runs to have beside each other, at most ``width``. run: a row, on any thread."""
    if width == 1:
        return 1
    row_s = _fastest(run, clock)
    if row_s < LONG_S:
        return 1
    with ThreadPoolExecutor(width) as threads:

        def run_beside() -> None:
            for future in [threads.submit(run) for _ in range(width)]:
                future.result()

        run_beside()  # starts the threads, and each has its memory
        return width_of(row_s, _fastest(run_beside, clock), width)


def _fastest(work: Callable[[], object], clock: Callable[[], float]) -> float:
    taken_s = []
    for _ in range(_NUM_TRIES):
        begun_at = clock()
        work()
        taken_s.append(clock() - begun_at)
    return min(taken_s)
