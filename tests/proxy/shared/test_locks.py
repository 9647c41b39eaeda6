"""When a worker must lock, and that nobody decides before everybody knows."""

from __future__ import annotations

import pytest

from proxy.gcra import Terms
from proxy.shared.layout import Geometry
from proxy.shared.owner import NoColumn, SharedTableOwner
from proxy.shared.table import SharedTable

SMALL = Geometry(limits=1, keys=1, permits=1, records=1, tallies=1, columns=3)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The system calls that locks made."""
    made: list[int] = []
    monkeypatch.setattr("fcntl.fcntl", lambda fd, command, order: made.append(command))
    return made


def attached(owner: SharedTableOwner) -> tuple[SharedTable, int]:
    column = owner.enter()
    return SharedTable.attached(owner.fd, column), column


def decide(table: SharedTable) -> None:
    table.limit("a", Terms(1000, 1.0, 1000)).decide("k", 0.0)
    table.permits("r").take("", 1000)
    record = table.record("r", 1)
    record.commit(record.begin())


def test_a_worker_alone_spends_no_system_call(calls: list[int]) -> None:
    owner = SharedTableOwner(SMALL)
    table, _ = attached(owner)
    decide(table)
    assert table.may_decide
    assert not calls


def test_a_second_worker_waits_until_the_first_has_said_that_it_locks(calls: list[int]) -> None:
    owner = SharedTableOwner(SMALL)
    first, _ = attached(owner)
    decide(first)
    second, column = attached(owner)
    assert not second.may_decide
    decide(first)  # its first decision from now on says it
    assert second.may_decide
    assert len(calls) == 10  # a lock and its end for each of: limit's place, limit, permit, record's place, record
    owner.left(column)
    owner.settle()
    decide(first)
    assert len(calls) == 11  # once more, to let go of whatever it may hold
    third, _ = attached(owner)
    assert not third.may_decide
    first.look()  # as its sweep does when there is nothing to decide
    assert third.may_decide


def test_a_worker_inside_of_an_unlocked_change_says_so_only_afterwards(calls: list[int]) -> None:
    owner = SharedTableOwner(SMALL)
    first, _ = attached(owner)
    record = first.record("r", 1)
    record.begin()
    second, _ = attached(owner)
    first.look()
    decided = first.limit("a", Terms(1, 1.0, 1)).decide("k", 0.0)
    assert decided == 1.0
    assert not calls
    assert not second.may_decide
    record.commit([1.0])
    first.look()
    assert second.may_decide


def test_a_dead_worker_is_not_waited_for() -> None:
    owner = SharedTableOwner(SMALL)
    _, column = attached(owner)
    second, _ = attached(owner)
    third, _ = attached(owner)
    assert not third.may_decide or second.may_decide
    owner.left(column)
    second.look()
    assert third.may_decide
    with pytest.raises(NoColumn, match="3 workers are there"):
        [owner.enter() for _ in range(2)]
    owner.close()


def test_going_back_to_none_is_not_said_while_two_are_there() -> None:
    owner = SharedTableOwner(SMALL)
    attached(owner)
    attached(owner)
    owner.settle()
    third, _ = attached(owner)
    assert not third.may_decide
    owner.close()
