"""Sliding windows: exact in any window, by a model of every request; at the bound of memory; over reloads."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.gcra import Terms
from proxy.shared.layout import WINDOW, Geometry
from proxy.shared.limit import SharedLimit, decide_together
from proxy.shared.sliding import MAX_COUNT, NUM_BUCKETS, SlidingLimit
from proxy.shared.table import SharedTable

SMALL = Geometry(limits=1, keys=16, permits=1, records=1, tallies=1, windows=2, window_keys=16)
TINY = SMALL._replace(window_keys=1)


def sliding(count: int, per_s: float, table: SharedTable | None = None) -> SlidingLimit:
    return (table or SharedTable.alone(SMALL)).sliding("a", Terms(count, per_s, count))


def test_H01_no_double_burst_at_a_window_boundary() -> None:
    memory = sliding(10, 60.0)
    passed = [memory.decide("k", 59.9) >= 0 for _ in range(10)] + [memory.decide("k", 60.1) >= 0 for _ in range(10)]
    assert passed == [True] * 10 + [False] * 10
    assert memory.decide("k", 119.89) < 0
    assert memory.decide("k", 119.92) == 1.0


@given(
    count=st.integers(1, 20),
    window_s=st.sampled_from([1, 60, 3600]),
    start=st.integers(0, 10**8),
    steps=st.lists(st.tuples(st.floats(0.0, 0.6), st.integers(1, 4)), min_size=1, max_size=80),
)
def test_never_more_than_the_count_in_any_window_and_forgiven_at_most_a_bucket_late(
    count: int, window_s: int, start: int, steps: list[tuple[float, int]]
) -> None:
    memory = sliding(count, float(window_s))
    late_s = window_s / NUM_BUCKETS + 0.02
    admitted: list[tuple[float, int]] = []
    now = float(start)
    for gap, cost in steps:
        now += gap * window_s
        within = sum(n for at, n in admitted if at > now - window_s + 1e-6)
        lately = sum(n for at, n in admitted if at > now - window_s - late_s)
        used = memory.used("k", now)
        assert within <= used <= lately
        if memory.decide("k", now, cost) >= 0:
            assert within + cost <= count
            admitted.append((now, cost))
        else:
            assert lately + cost > count


@example(count=2, times=[0.0], window_s=1)
@given(count=st.integers(1, 30), times=st.lists(st.floats(0.0, 100.0), max_size=60), window_s=st.sampled_from([1, 60]))
def test_H02_who_waits_as_told_passes(count: int, times: list[float], window_s: int) -> None:
    memory = sliding(count, float(window_s))
    now = 0.0
    for now in sorted(times):
        memory.decide("k", now)
    used = memory.used("k", now)
    later = now + memory.wait_of("k", used, now)
    assert memory.fits(memory.used("k", later + 1e-6))
    reset = now + memory.reset_of("k", used, now)
    assert memory.used("k", reset + 1e-6) == 0 or not memory.fits(used)


def test_H04_a_lowered_limit_counts_what_was_used() -> None:
    table = SharedTable.alone(SMALL)
    memory = sliding(100, 60.0, table)
    for i in range(80):
        assert memory.decide("k", 100.0 + i / 10) >= 0
    memory = sliding(50, 60.0, table)
    used = memory.used("k", 110.0)
    assert used == 80.0
    assert memory.remaining(used) == 0
    wait_s = memory.wait_of("k", used, 110.0)
    assert memory.decide("k", 110.0 + wait_s - 0.05) < 0
    assert memory.decide("k", 110.0 + wait_s + 0.01) <= 50.0
    assert sliding(200, 60.0, table).used("k", 110.0) == 81.0  # nobody gets a free window


def test_another_length_goes_on_with_what_was_counted() -> None:
    table = SharedTable.alone(SMALL)
    hourly = sliding(100, 3600.0, table)
    for i in range(50):
        assert hourly.decide("k", 10_000.0 + i * 40) >= 0
    now = 10_000.0 + 49 * 40
    minute = sliding(100, 60.0, table)
    assert 2.0 <= minute.used("k", now) <= 8.0  # those of the last minute, and of their buckets
    assert sliding(100, 3600.0, table).used("k", now) == 50.0


def test_what_is_given_back_and_what_is_found_to_be_more() -> None:
    memory = sliding(100, 60.0)
    assert memory.decide("k", 10.0, 40) == 40.0
    assert memory.decide("k", 20.0, 40) == 80.0
    assert memory.adjust("k", -30, 30.0) == 50.0
    assert memory.used("k", 71.0) == 40.0  # of the first forty: what stays is forgotten no earlier
    assert memory.adjust("k", 500, 71.0) == 200.0  # a debt of one burst at most
    assert memory.adjust("k", -500, 72.0) == 0.0
    assert memory.wait_of("k", 0.0, 72.0, 101) == inf


def test_the_table_is_bounded_and_nobody_is_forgiven_to_make_room() -> None:
    memory = SharedTable.alone(TINY).sliding("a", Terms(2, 60.0, 2))
    for i in range(WINDOW):
        assert memory.decide(f"old {i}", 10.0) == 1.0
    assert [memory.decide(key, 20.0) for key in ("d", "e", "f")] == [1.0, 2.0, -3.0]  # a common row
    assert memory.used("old 7", 20.0) == 1.0
    assert memory.decide("g", 70.5) == -3.0  # there is room again, but what is common counts on
    assert memory.decide("g", 80.5) == 1.0
    assert memory.decide("old 3", 80.5) == 1.0


def test_windows_and_buckets_are_counted_together_or_not_at_all() -> None:
    table = SharedTable.alone(SMALL)
    window, bucket = table.sliding("w", Terms(2, 60.0, 2)), table.limit("b", Terms(1, 1.0, 1))
    assert decide_together([(window, "k"), (bucket, "k")], 10.0) == [1.0, 1.0]
    assert decide_together([(window, "k"), (bucket, "k")], 10.0) == [-2.0, -2.0]
    assert decide_together([(window, "k"), (bucket, "k")], 11.0) == [2.0, 1.0]
    assert decide_together([(window, "k"), (bucket, "k")], 12.0) == [-3.0, -1.0]


def test_a_count_that_no_bucket_holds_is_refused_when_it_is_built() -> None:
    with pytest.raises(ValueError, match="use gcra"):
        sliding(MAX_COUNT + 1, 60.0)


@given(
    costs=st.lists(st.integers(0, 90), min_size=1, max_size=30),
    paid=st.data(),
    gap=st.integers(0, 3),
    slides=st.booleans(),
)
def test_reserved_and_settled_is_what_was_paid(costs: list[int], paid: st.DataObject, gap: int, slides: bool) -> None:
    """Within one window, or with a clock that forgives nothing, what is used is what was settled."""
    table = SharedTable.alone(SMALL)
    terms = Terms(100, 1e9, 100)
    memory: SlidingLimit | SharedLimit = table.sliding("a", terms) if slides else table.limit("a", terms)
    now, settled = 1000.0, 0.0
    for cost in costs:
        now += gap
        if memory.decide("k", now, cost) < 0:
            continue
        actual = paid.draw(st.integers(0, 150))
        settled = min(settled + actual, 200.0)  # in debt by one burst at most
        assert memory.adjust("k", actual - cost, now) == pytest.approx(settled, abs=1e-2)
    assert memory.used("k", now) == pytest.approx(settled, abs=1e-2)


@pytest.mark.parametrize("slides", [False, True])
def test_another_algorithm_goes_on_with_what_was_counted(slides: bool) -> None:
    table, terms = SharedTable.alone(SMALL), Terms(300, 3600.0, 300)

    def made(by_window: bool) -> SlidingLimit | SharedLimit:
        return table.sliding("a", terms) if by_window else table.limit("a", terms)

    old, now = made(slides), 5000.0
    for _ in range(50):
        old.decide("k", now)
    new = made(not slides)
    assert new.decide("k", now) == pytest.approx(51.0)
    assert old.decide("k", now) > 0  # by a worker that has the old configuration still
    assert new.decide("k", now) == pytest.approx(53.0)
    assert new.decide("k", now, 248.0) == pytest.approx(-54.0)
    assert new.decide("other", now) == 1.0
    wait_s = new.wait_of("k", new.used("k", now), now, 248.0)
    assert not new.fits(new.used("k", now + wait_s - 1.0), 248.0)
    assert new.fits(new.used("k", now + wait_s + 0.02), 248.0)
    reset_s = new.reset_of("k", new.used("k", now), now)
    assert new.used("k", now + reset_s + 0.02) == 0.0
    assert new.adjust("k", -1.0, now) == pytest.approx(52.0)
    assert made(slides).decide("k", now) == pytest.approx(53.0)  # and back
    later = now + 3600.0
    assert new.decide("k", later) == 1.0
    assert new.decide("k", later + 3600.0) <= 2.0
    assert new.decide("k", later + 7200.0) <= 3.0
    assert new._before is None  # nothing is left there: it is not asked any more


def test_what_was_counted_before_is_let_go_by_limits_that_are_asked_together() -> None:
    table, terms = SharedTable.alone(SMALL), Terms(10, 60.0, 10)
    table.limit("a", terms).decide("k", 0.0)
    new, beside = table.sliding("a", terms), table.sliding("b", terms)
    assert [decide_together([(new, "k"), (beside, "k")], 70.0 * i)[0] for i in range(3)] == [2.0, 1.0, 1.0]
    assert new._before is None
