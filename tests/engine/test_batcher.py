"""The batcher as a conversation, and its laws under random traffic."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batcher import RUN_COST_TOKENS, Batcher, Row, cost_tokens


def make_batcher(max_batch: int = 4, max_padded_tokens: int = 64, window_s: float = 0.0) -> Batcher[str]:
    return Batcher(max_batch=max_batch, max_padded_tokens=max_padded_tokens, window_s=window_s)


def names(rows: Sequence[Row[str]]) -> list[tuple[str, int]]:
    return [(row.job, row.index) for row in rows]


def test_runs_at_once_and_batches_what_waits() -> None:
    batcher = make_batcher()
    assert not batcher.ready(0.0)
    assert batcher.wake_at() is None
    assert batcher.take() == ()
    batcher.add("a", [5], now=1.0)
    assert batcher.ready(1.0)
    assert names(batcher.take()) == [("a", 0)]
    batcher.add("b", [5], now=2.0)
    batcher.add("c", [6, 6], now=2.1)
    assert names(batcher.take()) == [("b", 0), ("c", 0), ("c", 1)]
    assert not batcher.ready(9.0)


def test_window_counts_from_the_first_waiting_job() -> None:
    batcher = make_batcher(window_s=0.5)
    batcher.add("a", [5], now=1.0)
    batcher.add("b", [5], now=1.4)
    assert batcher.wake_at() == 1.5
    assert not batcher.ready(1.49)
    assert batcher.ready(1.5)
    batcher.drop("a")
    assert batcher.wake_at() == pytest.approx(1.9)


def test_window_ends_when_a_batch_is_full() -> None:
    batcher = make_batcher(window_s=0.5)
    batcher.add("a", [5, 5, 5], now=1.0)
    assert not batcher.ready(1.0)
    batcher.add("b", [5], now=1.0)
    assert batcher.ready(1.0)
    long = make_batcher(window_s=0.5)
    long.add("a", [64], now=1.0)
    assert long.ready(1.0)


def test_a_small_job_does_not_wait_for_a_large_one() -> None:
    batcher = make_batcher(max_batch=2)
    batcher.add("large", [5] * 100, now=1.0)
    batcher.take()
    batcher.add("small", [30], now=2.0)
    assert names(batcher.take()) == [("large", 2), ("large", 3)]
    assert names(batcher.take()) == [("small", 0)]


def test_like_goes_with_like() -> None:
    batcher = make_batcher(max_batch=8, max_padded_tokens=512)
    batcher.add("a", [10, 200, 12, 8, 190, 11], now=1.0)
    assert sorted(row.num_tokens for row in batcher.take()) == [8, 10, 11, 12]
    assert sorted(row.num_tokens for row in batcher.take()) == [190, 200]


def test_limits_of_a_run_and_a_row_beyond_them() -> None:
    batcher = make_batcher(max_padded_tokens=20)
    batcher.add("a", [50, 10, 10, 10], now=1.0)
    assert [row.num_tokens for row in batcher.take()] == [50]
    assert [row.num_tokens for row in batcher.take()] == [10, 10]
    batcher.add("b", [10], now=1.0)
    assert len(batcher.take(max_padded_tokens=0)) == 1
    assert len(batcher.take(max_padded_tokens=1000)) == 1


def test_O01_halves_until_the_culprit_stands_alone() -> None:
    batcher = make_batcher(window_s=1.0)
    batcher.add("a", [5, 5, 5, 5], now=0.0)
    batcher.add("later", [5], now=0.0)
    rows = batcher.take()
    assert batcher.split(rows)
    assert batcher.ready(0.0)
    assert names(batcher.take()) == [("a", 0), ("a", 1)]
    second = batcher.take()
    assert names(second) == [("a", 2), ("a", 3)]
    assert batcher.split(second)
    alone = batcher.take()
    assert names(alone) == [("a", 2)]
    assert not batcher.split(alone)


def test_O02_dropped_jobs_leave_the_queue_and_the_halves() -> None:
    batcher = make_batcher()
    batcher.add("a", [5, 5], now=0.0)
    batcher.add("b", [5, 5, 5], now=0.0)
    assert batcher.split(batcher.take())
    batcher.drop("a")
    assert names(batcher.take()) == [("b", 0), ("b", 1)]
    batcher.drop("b")
    batcher.drop("unknown")
    assert batcher.take() == ()
    assert (batcher.num_rows, batcher.num_tokens) == (0, 0)


jobs_of_lengths = st.lists(st.lists(st.integers(2, 40), min_size=1, max_size=12), min_size=1, max_size=12)


@given(jobs_of_lengths, st.integers(1, 6), st.integers(1, 120))
def test_every_row_runs_exactly_once_within_the_limits(
    jobs: list[list[int]], max_batch: int, max_padded_tokens: int
) -> None:
    batcher = Batcher[int](max_batch=max_batch, max_padded_tokens=max_padded_tokens)
    for job, lengths in enumerate(jobs):
        batcher.add(job, lengths, now=0.0)
    seen: list[tuple[int, int]] = []
    while batcher.ready(0.0):
        rows = batcher.take()
        longest = max(row.num_tokens for row in rows)
        assert len(rows) <= max_batch
        assert len(rows) == 1 or len(rows) * longest <= max_padded_tokens
        alone = sum(cost_tokens(1, row.num_tokens) for row in rows)
        assert cost_tokens(len(rows), longest) <= alone
        seen += [(row.job, row.index) for row in rows]
        assert all(jobs[row.job][row.index] == row.num_tokens for row in rows)
    assert sorted(seen) == [(job, index) for job, lengths in enumerate(jobs) for index in range(len(lengths))]
    assert (batcher.num_rows, batcher.num_tokens) == (0, 0)


@given(jobs_of_lengths, st.lists(st.integers(2, 40), min_size=30, max_size=60))
def test_nobody_starves(jobs: list[list[int]], newcomers: list[int]) -> None:
    """However many short jobs keep coming, every waiting job gets on by a row within as many turns as jobs wait."""
    batcher = make_batcher(max_batch=2)
    left = {f"old {index}": len(lengths) for index, lengths in enumerate(jobs)}
    for name, lengths in zip(left, jobs, strict=True):
        batcher.add(name, lengths, now=0.0)
    last_served = dict.fromkeys(left, 0)
    num_jobs = len(left)
    waiting = dict(left)
    for turn, length in enumerate(newcomers, start=1):
        name = f"new {turn}"
        batcher.add(name, [length], now=float(turn))
        waiting[name] = 1
        last_served[name] = turn - 1
        num_jobs = max(num_jobs, len(waiting))
        for row in batcher.take():
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
    batcher = Batcher[int](max_batch=8, max_padded_tokens=1000)
    for job, lengths in enumerate(jobs):
        batcher.add(job, lengths, now=0.0)
    failed: set[tuple[int, int]] = set()
    served: list[tuple[int, int]] = []
    num_runs = 0
    while batcher.ready(0.0):
        rows = batcher.take()
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
    batcher = make_batcher(max_padded_tokens=1000)
    batcher.add("a", [10, 10 + RUN_COST_TOKENS], now=0.0)
    batcher.add("b", [100, 101 + RUN_COST_TOKENS], now=0.0)
    assert len(batcher.take()) == 2
    assert len(batcher.take()) == 1
