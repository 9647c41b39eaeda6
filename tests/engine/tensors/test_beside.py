"""Runs go on beside each other where that was faster as the model was loaded."""

from __future__ import annotations

import threading
from itertools import cycle

import pytest

from engine.tensors.beside import LONG_S, MIN_GAIN, try_beside, width_of


@pytest.mark.parametrize(
    ("row_s", "beside_s", "width", "found"),
    [
        (LONG_S, LONG_S, 2, 2),  # as if there were two devices
        (0.9 * LONG_S, LONG_S, 2, 1),  # too short
        (1.0, 1.99 / MIN_GAIN, 2, 2),
        (1.0, 2.01 / MIN_GAIN, 2, 1),  # gains too little
        (1.0, 3.0, 4, 4),
        (1.0, 5.0, 4, 1),
    ],
)
def test_long_runs_that_gain_go_on_beside_each_other(row_s: float, beside_s: float, width: int, found: int) -> None:
    assert width_of(row_s, beside_s, width) == found


def tried(times_s: list[float], width: int) -> tuple[int, int]:
    """(what is found, how many runs there were) when the tries take so long in turn."""
    lock, runs = threading.Lock(), [0]
    now, ends = [0.0], cycle([False, True])
    left = iter(times_s)

    def clock() -> float:
        if next(ends):
            now[0] += next(left)
        return now[0]

    def run() -> None:
        with lock:
            runs[0] += 1

    return try_beside(run, width, clock=clock), runs[0]


def test_the_fastest_of_three_tries_counts() -> None:
    assert tried([9.0, 1.0, 5.0, 9.0, 1.1, 3.0], 2) == (2, 3 + 2 + 6)
    assert tried([1.0, 9.0, 9.0, 2.0, 3.0, 2.0], 2) == (1, 3 + 2 + 6)


def test_nothing_is_tried_where_there_is_nothing_to_share_or_a_run_is_short() -> None:
    assert tried([], 1) == (1, 0)
    assert tried([9.0, LONG_S / 2, 9.0], 4) == (1, 3)


def test_what_a_run_raises_is_not_lost() -> None:
    def run() -> None:
        raise RuntimeError("bad")

    with pytest.raises(RuntimeError, match="bad"):
        try_beside(run, 2)
