"""A budget's memory at its bound, and that what it remembers belongs to names and keys, not to processes."""

from __future__ import annotations

import pytest

from proxy.shared.budget import MAX_COUNT, BudgetMemory
from proxy.shared.layout import WINDOW, Geometry
from proxy.shared.table import SharedTable

#: All keys share one window of slots.
TINY = Geometry(limits=2, keys=1, permits=1, records=2, tallies=2, windows=2, window_keys=1)
T0 = 1_796_040_000.0
HOUR = 3600.0


def take(memory: BudgetMemory, key: str, cost: int, start: float = T0) -> None:
    memory.take(key, cost, start + 1.0, start)


def used(memory: BudgetMemory, key: str, start: float = T0) -> int:
    return memory.used(key, start + 1.0, start)


@pytest.mark.parametrize("rolling_s", [0.0, HOUR])
def test_nobody_is_forgiven_to_make_room(rolling_s: float) -> None:
    memory = SharedTable.alone(TINY).budget("b", rolling_s)
    for i in range(WINDOW):
        take(memory, f"old {i}", 5)
    take(memory, "d", 3)
    take(memory, "e", 4)
    assert [used(memory, key) for key in ("d", "e", "f", "old 7")] == [7, 7, 7, 5]
    take(memory, "g", 1, T0 + 2 * HOUR)  # the old ones are void, and one of them makes room
    assert used(memory, "g", T0 + 2 * HOUR) == 1


def test_who_finds_room_later_begins_with_what_all_without_have_used() -> None:
    memory = SharedTable.alone(TINY).budget("b", HOUR)
    for i in range(WINDOW):
        memory.take(f"old {i}", 5, T0, 0.0)
    memory.take("new", 3, T0 + 0.9 * HOUR, 0.0)
    memory.take("new", 2, T0 + 1.2 * HOUR, 0.0)
    assert memory.used("new", T0 + 1.2 * HOUR, 0.0) == 5
    assert memory.used("another", T0 + 1.2 * HOUR, 0.0) == 3


def test_a_correction_finds_its_own_bucket_and_nothing_else() -> None:
    memory = SharedTable.alone(TINY).budget("b", HOUR)
    memory.take("k", 50, T0, 0.0)
    memory.take("k", 7, T0 + 0.5 * HOUR, 0.0)
    memory.correct("k", -40, T0, 0.0)
    assert memory.used("k", T0 + 0.5 * HOUR, 0.0) == 17
    memory.correct("k", -100, T0, 0.0)
    assert memory.used("k", T0 + 0.5 * HOUR, 0.0) == 7
    memory.take("k", 9, T0 + 16 * HOUR / 14, 0.0)  # the same bucket, one round later
    memory.correct("k", 1000, T0, 0.0)
    assert memory.used("k", T0 + 16 * HOUR / 14, 0.0) == 16


def test_it_counts_to_its_bound_and_stays_there() -> None:
    memory = SharedTable.alone(TINY).budget("b", 0.0)
    take(memory, "k", MAX_COUNT)
    take(memory, "k", 5)
    assert used(memory, "k") == MAX_COUNT
    memory.correct("k", 1, T0 + 1.0, T0)
    assert used(memory, "k") == MAX_COUNT


def test_budgets_are_told_apart_and_outlive_the_snapshot() -> None:
    table = SharedTable.alone(TINY)
    take(table.budget("a", 0.0), "k", 5)
    take(table.budget("b", 0.0), "k", 6)
    assert [used(table.budget(name, 0.0), "k") for name in "ab"] == [5, 6]
