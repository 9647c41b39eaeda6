"""The batcher as a conversation, and its laws under random traffic."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batching.batcher import Batcher
from engine.batching.item import Item
from engine.batching.pace import Pace
from engine.batching.waiting import HIGH, LOW, NORMAL, Entry
from engine.batching.window import Closing, Forming, Traffic


class FixedPace(Pace):
    """A run costs as much as 16 more units of size; b and a are what a test says."""

    def __init__(self, b: float = 16e-3, a: float = 1e-3) -> None:
        super().__init__()
        self.b, self.a = b, a

    def run_s(self, rows: int, size: int) -> float:
        return self.b + self.a * rows * size


class FixedWindow:
    """A policy that waits for so long, unless the batch is full."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s

    def close(self, forming: Forming, traffic: Traffic) -> Closing:
        return Closing(forming.since + (0.0 if forming.full else self.window_s), "window", self.window_s)


def make_batcher(max_batch: int = 4, window_s: float = 0.0, pace: Pace | None = None) -> Batcher[str]:
    return Batcher(pace or FixedPace(), max_batch=max_batch, policy=FixedWindow(window_s))


def items(*sizes: int) -> list[Item]:
    return [Item(None, size=size) for size in sizes]


def names(entries: Sequence[Entry[str]]) -> list[tuple[str, int]]:
    return [(entry.job, entry.index) for entry in entries]


def sizes(entries: Sequence[Entry[Any]]) -> list[int]:
    return [entry.item.size for entry in entries]


def test_runs_at_once_and_batches_what_waits() -> None:
    batcher = make_batcher()
    assert not batcher.ready(9.0)
    assert batcher.wake_at() is None
    assert batcher.take(9.0) == ()
    batcher.add("a", items(5), now=1.0)
    assert batcher.ready(1.0)
    assert names(batcher.take(9.0)) == [("a", 0)]
    batcher.add("b", items(5), now=2.0)
    batcher.add("c", items(6, 6), now=2.1)
    assert names(batcher.take(9.0)) == [("b", 0), ("c", 0), ("c", 1)]
    assert not batcher.ready(9.0)


def test_window_counts_from_the_first_waiting_job() -> None:
    batcher = make_batcher(window_s=0.5)
    batcher.add("a", items(5), now=1.0)
    batcher.add("b", items(5), now=1.4)
    assert batcher.wake_at() == 1.5
    assert not batcher.ready(1.49)
    assert batcher.ready(1.5)
    batcher.drop("a")
    assert batcher.wake_at() == pytest.approx(1.9)


def test_window_ends_when_a_batch_is_full() -> None:
    batcher = make_batcher(window_s=0.5)
    batcher.add("a", items(5, 5, 5), now=1.0)
    assert not batcher.ready(1.0)
    batcher.add("b", items(5), now=1.0)
    assert batcher.ready(1.0)
    beyond = make_batcher(window_s=0.5, pace=FixedPace(b=0.0))
    beyond.add("a", items(5), now=1.0)
    assert beyond.ready(1.0)  # company would gain nothing


def test_the_window_opens_when_the_device_is_free() -> None:
    batcher = make_batcher(window_s=0.5)
    batcher.add("a", items(5), now=1.0)
    batcher.ran(3.0, num_answered=1)
    assert batcher.wake_at() == 3.5
    batcher.add("b", items(5), now=3.2)
    assert batcher.wake_at() == 3.5


def test_a_small_job_does_not_wait_for_a_large_one() -> None:
    batcher = make_batcher(max_batch=2)
    batcher.add("large", items(*[5] * 100), now=1.0)
    batcher.take(9.0)
    batcher.add("small", items(30), now=2.0)
    assert names(batcher.take(9.0)) == [("large", 2), ("large", 3)]
    assert names(batcher.take(9.0)) == [("small", 0)]


def test_like_goes_with_like() -> None:
    batcher = make_batcher(max_batch=8, pace=FixedPace(b=64e-3))
    batcher.add("a", items(10, 200, 12, 8, 190, 11), now=1.0)
    assert sorted(sizes(batcher.take(9.0))) == [8, 10, 11, 12]
    assert sorted(sizes(batcher.take(9.0))) == [190, 200]


def test_the_allowance_bounds_a_run_and_one_item_always_fits() -> None:
    batcher = make_batcher()
    batcher.add("a", items(10, 10, 10, 10), now=1.0)
    assert len(batcher.take(1.0, allowance_s=0.037)) == 2
    assert len(batcher.take(1.0, allowance_s=0.0)) == 1
    assert len(batcher.take(1.0)) == 1


def test_a_deadline_bounds_the_company() -> None:
    batcher = make_batcher()
    batcher.add("urgent", items(10), now=1.0, due_at=1.040)
    batcher.add("others", items(10, 10, 10), now=1.0)
    assert names(batcher.take(1.0)) == [("urgent", 0), ("others", 0)]


def test_O01_halves_until_the_culprit_stands_alone() -> None:
    batcher = make_batcher(window_s=1.0)
    batcher.add("a", items(5, 5, 5, 5), now=0.0)
    batcher.add("later", items(5), now=0.0)
    rows = batcher.take(9.0)
    assert batcher.split(rows)
    assert batcher.ready(9.0)
    assert names(batcher.take(9.0)) == [("a", 0), ("a", 1)]
    second = batcher.take(9.0)
    assert names(second) == [("a", 2), ("a", 3)]
    assert batcher.split(second)
    alone = batcher.take(9.0)
    assert names(alone) == [("a", 2)]
    assert not batcher.split(alone)


def test_O02_dropped_jobs_leave_the_queue_and_the_halves() -> None:
    batcher = make_batcher()
    batcher.add("a", items(5, 5), now=0.0)
    batcher.add("b", items(5, 5, 5), now=0.0)
    assert batcher.split(batcher.take(9.0))
    batcher.drop("a")
    assert names(batcher.take(9.0)) == [("b", 0), ("b", 1)]
    batcher.drop("b")
    batcher.drop("unknown")
    assert batcher.take(9.0) == ()
    assert batcher.num_rows == 0


jobs_of_lengths = st.lists(st.lists(st.integers(2, 40), min_size=1, max_size=12), min_size=1, max_size=12)


@given(jobs_of_lengths, st.integers(1, 6), st.floats(0, 0.1))
def test_every_item_runs_exactly_once_within_the_limits(
    jobs: list[list[int]], max_batch: int, allowance_s: float
) -> None:
    pace = FixedPace()
    batcher = Batcher[int](pace, max_batch=max_batch)
    for job, lengths in enumerate(jobs):
        batcher.add(job, items(*lengths), now=0.0)
    seen: list[tuple[int, int]] = []
    while batcher.ready(9.0):
        rows = batcher.take(9.0, allowance_s)
        longest = max(sizes(rows))
        assert len(rows) <= max_batch
        assert len(rows) == 1 or pace.run_s(len(rows), longest) <= allowance_s
        alone_s = sum(pace.run_s(1, size) for size in sizes(rows))
        assert pace.run_s(len(rows), longest) <= alone_s * 1.0001
        seen += [(row.job, row.index) for row in rows]
        assert all(jobs[row.job][row.index] == row.item.size for row in rows)
    assert sorted(seen) == [(job, index) for job, lengths in enumerate(jobs) for index in range(len(lengths))]
    assert batcher.num_rows == 0


@given(jobs_of_lengths, st.lists(st.integers(2, 40), min_size=30, max_size=60))
def test_nobody_starves(jobs: list[list[int]], newcomers: list[int]) -> None:
    """However many short jobs keep coming, every waiting job gets on by a row within as many turns as jobs wait."""
    batcher = make_batcher(max_batch=2)
    left = {f"old {index}": len(lengths) for index, lengths in enumerate(jobs)}
    for name, lengths in zip(left, jobs, strict=True):
        batcher.add(name, items(*lengths), now=0.0)
    last_served = dict.fromkeys(left, 0)
    num_jobs = len(left)
    waiting = dict(left)
    for turn, length in enumerate(newcomers, start=1):
        name = f"new {turn}"
        batcher.add(name, items(length), now=float(turn))
        waiting[name] = 1
        last_served[name] = turn - 1
        num_jobs = max(num_jobs, len(waiting))
        for row in batcher.take(9.0):
            last_served[row.job] = turn
            waiting[row.job] -= 1
            if not waiting[row.job]:
                del waiting[row.job]
        assert all(turn - last_served[job] <= num_jobs for job in waiting)


@given(jobs_of_lengths, st.data())
def test_O01_only_culprits_are_left_alone(jobs: list[list[int]], data: st.DataObject) -> None:
    """Runs that hold a bad row raise; exactly the bad rows end alone, in a bounded number of runs."""
    everyone = [(job, index) for job, lengths in enumerate(jobs) for index in range(len(lengths))]
    bad = data.draw(st.sets(st.sampled_from(everyone)))
    batcher = Batcher[int](FixedPace(), max_batch=8)
    for job, lengths in enumerate(jobs):
        batcher.add(job, items(*lengths), now=0.0)
    failed: set[tuple[int, int]] = set()
    served: list[tuple[int, int]] = []
    num_runs = 0
    while batcher.ready(9.0):
        rows = batcher.take(9.0)
        num_runs += 1
        members = [(row.job, row.index) for row in rows]
        if bad.isdisjoint(members):
            served += members
        elif not batcher.split(rows):
            failed.update(members)
    assert failed == bad
    assert sorted([*served, *failed]) == everyone
    assert num_runs <= 2 * len(everyone)


def test_run_cost_is_what_makes_company_worth_padding() -> None:
    batcher = make_batcher()
    batcher.add("a", items(10, 20), now=0.0)
    batcher.add("b", items(100, 117), now=0.0)
    assert len(batcher.take(9.0)) == 2
    assert len(batcher.take(9.0)) == 1


def test_where_a_run_costs_nothing_beyond_its_rows_each_runs_alone() -> None:
    batcher = make_batcher(pace=FixedPace(b=0.0))
    batcher.add("a", items(128, 128), now=0.0)
    assert len(batcher.take(9.0)) == 1


def test_urgent_jobs_lead_and_others_fill_their_batch() -> None:
    batcher = make_batcher()
    batcher.add("low", items(5, 5, 5), now=0.0, level=LOW)
    batcher.add("normal", items(5, 5), now=0.0, level=NORMAL)
    batcher.add("high", items(9), now=0.0, level=HIGH)
    assert names(batcher.take(9.0)) == [("high", 0), ("normal", 0), ("normal", 1), ("low", 0)]
    assert names(batcher.take(9.0)) == [("low", 1), ("low", 2)]


def test_only_equal_shapes_share_a_run_and_rows_are_counted() -> None:
    batcher = make_batcher()
    batcher.add("a", [Item(None, rows=2, shape=(3,)), Item(None, rows=1, shape=(4,))], now=0.0)
    batcher.add("b", [Item(None, rows=3, shape=(3,)), Item(None, rows=2, shape=(3,))], now=0.0)
    batcher.add("beyond", [Item(None, rows=9, shape=(3,))], now=0.0)
    assert names(batcher.take(9.0)) == [("a", 0), ("b", 1)]
    assert names(batcher.take(9.0)) == [("b", 0)]
    assert names(batcher.take(9.0)) == [("beyond", 0)]
    assert names(batcher.take(9.0)) == [("a", 1)]
    assert batcher.num_rows == 0


def test_what_is_overdue_does_not_run() -> None:
    batcher = make_batcher(window_s=5.0)
    batcher.add("a", items(5), now=0.0, due_at=2.0)
    batcher.add("b", items(5), now=0.0)
    assert batcher.wake_at() == 2.0
    assert not batcher.ready(1.9)
    assert batcher.overdue(1.9) == []
    assert batcher.ready(2.0)
    assert batcher.overdue(2.0) == ["a"]
    assert batcher.wake_at() == 5.0
    assert names(batcher.take(9.0)) == [("b", 0)]
