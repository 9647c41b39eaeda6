"""A limit's memory at its bound, and that what it remembers belongs to names, keys and terms, not to processes."""

from __future__ import annotations

import pytest

from proxy.gcra import Terms
from proxy.shared.layout import WINDOW, Geometry
from proxy.shared.limit import SharedLimit, decide_together
from proxy.shared.table import SharedTable

#: All keys of a limit share one window.
TINY = Geometry(limits=2, keys=1, permits=1, records=2, tallies=2)
ONE_PER_S = Terms(1, 1.0, 1)


def fill(memory: SharedLimit, now: float) -> None:
    """Take every slot."""
    for i in range(WINDOW):
        assert memory.decide(f"old {i}", now) == 1.0


def test_the_table_is_bounded_and_only_full_buckets_make_room() -> None:
    memory = SharedTable.alone(TINY).limit("a", Terms(1, 1.0, 2))
    fill(memory, 0.0)
    assert memory.decide("d", 0.5) == 1.0  # nobody is full again: the common bucket
    assert memory.decide("e", 0.5) == 2.0
    assert memory.decide("f", 0.5) == -3.0
    assert memory.used("old 7", 0.5) == pytest.approx(0.5)  # nobody was forgiven
    assert memory.decide("g", 1.0) == pytest.approx(-2.5)  # there is room again, but the common bucket is not forgiven
    assert memory.decide("g", 1.5) == pytest.approx(2.0)
    assert memory.used("g", 1.5) == pytest.approx(2.0)
    assert memory.used("h", 1.5) == pytest.approx(1.0)  # who is new has used what the common bucket has


def test_a_key_whose_slot_was_given_away_begins_with_the_common_bucket() -> None:
    memory = SharedTable.alone(TINY).limit("a", ONE_PER_S)
    fill(memory, 0.0)
    assert memory.decide("new", 1.0) == 1.0  # in the slot of one that is full again
    assert memory.decide("new", 1.5) == -1.5
    taken = [memory.decide(f"old {i}", 1.5) for i in range(WINDOW)]
    assert taken == [1.0] * (WINDOW - 1) + [1.0]  # one of them found no slot, and the common bucket empty
    assert memory.decide("another", 1.5) == -2.0


def test_a_full_table_of_busy_keys_still_finds_the_idle_one() -> None:
    memory = SharedTable.alone(TINY).limit("a", ONE_PER_S)
    assert memory.decide("idle", 0.0) == 1.0
    for i in range(WINDOW - 1):
        assert memory.decide(f"k{i}", 9.5) == 1.0
    assert [memory.decide(f"new {i}", 10.0) > 0 for i in range(3)] == [True, True, False]


def test_limits_and_names_of_keys_are_told_apart() -> None:
    table = SharedTable.alone(TINY)
    one, other = table.limit("a", ONE_PER_S), table.limit("b", ONE_PER_S)
    assert [one.decide("k", 0.0), other.decide("k", 0.0), one.decide("K", 0.0)] == [1.0] * 3
    assert one.decide("k", 0.0) < 0 > other.decide("k", 0.0)


def test_together_all_count_or_none() -> None:
    table = SharedTable.alone(TINY)
    wide, narrow = table.limit("wide", Terms(10, 10.0, 10)), table.limit("narrow", ONE_PER_S)
    assert decide_together([(wide, "k"), (narrow, "")], 0.0) == [1.0, 1.0]
    assert decide_together([(wide, "k"), (narrow, "")], 0.0) == [-2.0, -2.0]
    assert decide_together([(wide, "k"), (narrow, "")], 1.0) == pytest.approx([1.0, 1.0])


def test_what_was_used_outlives_the_snapshot_that_counted_it() -> None:
    table = SharedTable.alone(TINY)
    assert table.limit("a", ONE_PER_S).decide("k", 0.0) == 1.0
    assert table.limit("a", ONE_PER_S).decide("k", 0.0) == -2.0


def test_who_took_the_time_before_the_first_decision_has_used_nothing() -> None:
    memory = SharedTable.alone(TINY).limit("a", Terms(1000, 1.0, 1))
    assert memory.decide("late", 5.0) == 1.0
    assert memory.decide("early", 4.999) == 1.0


def test_many_keys_find_their_slots() -> None:
    memory = SharedTable.alone(Geometry(limits=1, keys=1024, permits=1, records=1, tallies=1)).limit("a", ONE_PER_S)
    assert [memory.decide(f"k{i}", 0.0) for i in range(200)] == [1.0] * 200
    assert [memory.decide(f"k{i}", 0.0) for i in range(200)] == [-2.0] * 200
