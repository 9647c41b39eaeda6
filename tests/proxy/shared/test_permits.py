"""Permits of the whole box: counted over columns, given back with the column, bounded."""

from __future__ import annotations

from proxy.shared.layout import WINDOW, Geometry
from proxy.shared.owner import SharedTableOwner
from proxy.shared.table import SharedTable

SMALL = Geometry(limits=1, keys=1, permits=1, records=1, tallies=1, columns=8)


def test_H05_workers_have_one_count_and_a_dead_one_gives_back_what_it_held() -> None:
    owner = SharedTableOwner(SMALL)
    columns = [owner.enter() for _ in range(3)]
    one, two, three = (SharedTable.attached(owner.fd, column).permits("route") for column in columns)
    taken = [each.take("", 4) for each in (one, two, two, three, one, three)]
    assert [permit >= 0 for permit in taken] == [True] * 4 + [False] * 2
    assert one.open("") == 4
    owner.left(columns[1])
    assert one.open("") == 2
    assert [one.take("", 4) >= 0 for _ in range(3)] == [True, True, False]
    one.give_back(taken[0])
    assert three.take("", 4) >= 0
    owner.close()


def test_names_and_keys_are_told_apart() -> None:
    table = SharedTable.alone(SMALL)
    one, other = table.permits("one"), table.permits("other")
    assert [one.take("k", 1) >= 0, one.take("l", 1) >= 0, other.take("k", 1) >= 0] == [True] * 3
    assert one.take("k", 1) == -1


def test_a_key_has_a_slot_as_long_as_something_is_open() -> None:
    permits = SharedTable.alone(SMALL).permits("client")
    for i in range(5 * WINDOW):
        permit = permits.take(f"client {i}", 1)
        assert permit >= 0
        permits.give_back(permit)


def test_keys_without_a_slot_share_one_that_counts_against_all() -> None:
    permits = SharedTable.alone(SMALL).permits("client")
    held = [permits.take(f"client {i}", 2) for i in range(WINDOW)]
    assert len(set(held)) == WINDOW
    common = permits.take("late", 2)
    assert permits.take("later", 2) == common
    assert permits.take("latest", 2) == -1
    assert permits.take("client 0", 2) == -1  # rather too few than too many
    permits.give_back(common)
    permits.give_back(common)
    assert permits.take("client 0", 2) == held[0]
