"""Real processes on one table: exact under contention, and whole whenever one of them is killed."""

from __future__ import annotations

import os
import signal

import pytest

from proxy.gcra import Terms
from proxy.shared.layout import WINDOW
from proxy.shared.limit import decide_together
from proxy.shared.locks import ALL_LIMITS, ALL_PERMITS
from proxy.shared.owner import SharedTableOwner
from proxy.shared.table import SharedTable
from tests.proxy.shared.processes import (
    NUM_WORKERS,
    SMALL,
    go_on,
    in_child,
    killed_at_every_store,
    owner,
    says,
    started,
    two_workers,
)

__all__ = ["owner"]  # the fixture
TERMS = Terms(500, 3600.0, 500)

#: Asks 400 times for a limit of 500, for permits of which 10 may be out, and adds one to a record each time.
WORKER = """
import sys
from proxy.gcra import Terms
from proxy.shared.locks import ALL_PERMITS, PERMITS_DONE
from proxy.shared.table import SharedTable
table = SharedTable.attached(int(sys.argv[1]), int(sys.argv[2]))
limit, permits, record = table.limit("l", Terms(500, 3600.0, 500)), table.permits("p"), table.record("r", 2)
print("here", flush=True)
sys.stdin.readline()
window, passed, slid, held = table.sliding("w", Terms(700, 60.0, 700)), 0, 0, []
for n in range(400):
    passed += limit.decide("everybody", 1000.0) >= 0
    slid += window.decide("everybody", 1000.0 + n / 10) >= 0
    held.append(permits.take("everybody", 10))
    table._locks.enter(ALL_PERMITS)  # nobody takes one meanwhile
    assert permits.open("everybody") <= 10
    table._locks.leave(PERMITS_DONE)
    if len(held) > 5:
        permit = held.pop(0)
        if permit >= 0:
            permits.give_back(permit)
    here, there = record.begin()
    assert here == -there
    record.commit((here + 1, there - 1))
    here, there = record.load()
    assert here == -there
print(passed, slid, sum(permit >= 0 for permit in held), flush=True)
sys.stdin.readline()
"""


def test_H05_four_workers_admit_exactly_what_one_would(owner: SharedTableOwner) -> None:
    columns = [owner.enter() for _ in range(NUM_WORKERS + 1)]
    ours = SharedTable.attached(owner.fd, columns.pop())
    workers = started(owner, columns, WORKER)
    for worker in workers:
        go_on(worker)
    told = [tuple(map(int, says(worker).split())) for worker in workers]
    assert sum(passed for passed, _, _ in told) == 500
    assert sum(slid for _, slid, _ in told) == 700
    assert ours.limit("l", TERMS).decide("everybody", 1000.0) == -501.0
    assert ours.record("r", 2).load() == [1600.0, -1600.0]
    held = sum(held for _, _, held in told)
    assert ours.permits("p").open("everybody") == held
    for worker, column, (_, _, its) in zip(workers, columns, told, strict=True):
        worker.kill()
        worker.communicate()
        owner.left(column)
        held -= its
        assert ours.permits("p").open("everybody") == held


def test_a_lock_ends_with_its_holder(owner: SharedTableOwner) -> None:
    ours, theirs = two_workers(owner)
    limit, permits, record = ours.limit("l", TERMS), ours.permits("p"), ours.record("r", 1)
    other = theirs.record("r", 1)

    def hold() -> None:
        for lock in (ALL_LIMITS, ALL_PERMITS):
            theirs._locks.enter(lock)
        other.begin()
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(hold) == -signal.SIGKILL
    assert limit.decide("k", 1000.0) == 1.0
    assert permits.take("k", 1) >= 0
    assert record.begin() == [0.0]
    record.commit([1.0])


def test_who_holds_a_lock_is_waited_for(owner: SharedTableOwner) -> None:
    ours, theirs = two_workers(owner)
    record, other = ours.record("r", 1), theirs.record("r", 1)
    record.begin()
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writer, b"x")
        values = other.begin()
        other.commit([10 * values[0]])
        os._exit(0)
    os.read(reader, 1)
    record.commit([7.0])
    assert os.waitpid(pid, 0)[1] == 0
    assert record.load() == [70.0]
    os.close(reader)
    os.close(writer)


@pytest.fixture
def tables(owner: SharedTableOwner) -> tuple[SharedTable, SharedTable]:
    return two_workers(owner)


def test_killed_in_a_decision_the_others_keep_what_was_used(tables: tuple[SharedTable, SharedTable]) -> None:
    ours, theirs = tables
    limit, other = ours.limit("l", TERMS), theirs.limit("l", TERMS)
    assert [limit.decide("k", 1000.0), limit.decide("bystander", 1000.0), other.decide("k", 1000.0)] == [1.0, 1.0, 2.0]
    used = [2.0]

    def check() -> None:
        now = limit.used("k", 1000.0)
        assert now in (used[0], used[0] + 1)
        assert limit.used("bystander", 1000.0) == 1.0
        assert limit.decide("k", 1000.0) == now + 1
        used[0] = now + 1

    assert killed_at_every_store(lambda: other.decide("k", 1000.0), check) >= 1


def test_killed_while_a_new_key_takes_the_slot_of_an_old_one(owner: SharedTableOwner) -> None:
    owner = SharedTableOwner(SMALL._replace(keys=1))
    ours, theirs = two_workers(owner)
    terms = Terms(1, 1.0, 2)
    limit, other = ours.limit("l", terms), theirs.limit("l", terms)
    for i in range(WINDOW):
        assert limit.decide(f"k{i}", 1000.0 if i else 998.0) == 1.0
    used = [0.0]

    def check() -> None:
        assert [limit.used(f"k{i}", 1000.0) for i in range(WINDOW)] == [0.0] + [1.0] * (WINDOW - 1)
        now = limit.used("new", 1000.0)
        assert now in (used[0], used[0] + 1)
        used[0] = now

    assert killed_at_every_store(lambda: other.decide("new", 1000.0), check) >= 3
    assert used[0] >= 1.0
    owner.close()


def test_killed_in_a_sliding_window_the_others_keep_what_was_used(tables: tuple[SharedTable, SharedTable]) -> None:
    ours, theirs = tables
    terms = Terms(500, 60.0, 500)
    limit, other = ours.sliding("w", terms), theirs.sliding("w", terms)
    assert limit.decide("bystander", 1000.0) == 1.0
    now, used = [1000.0], [0.0]

    def check() -> None:
        seen = limit.used("k", now[0])
        assert seen in (used[0], used[0] + 1)
        assert limit.used("bystander", now[0]) == 1.0
        now[0] += 1.5  # now and then another bucket
        used[0] = seen

    assert killed_at_every_store(lambda: other.decide("k", now[0]), check) >= 2  # a new key
    before = used[0]
    assert before >= 1.0
    assert killed_at_every_store(lambda: other.decide("k", now[0]), check) >= 1
    assert used[0] > before


def test_killed_while_several_limits_are_counted(tables: tuple[SharedTable, SharedTable]) -> None:
    ours, theirs = tables
    names = ("l", "m", "n")
    limits, others = [ours.limit(name, TERMS) for name in names], [theirs.limit(name, TERMS) for name in names]
    decide_together([(limit, "k") for limit in limits], 1000.0)

    def check() -> None:
        used = [limit.used("k", 1000.0) for limit in limits]
        assert used == sorted(used, reverse=True)  # counted in order
        assert used[0] - used[-1] <= 1.0  # a request that never was answered
        for limit, wanted in zip(limits, used, strict=True):
            while wanted < used[0]:
                wanted = limit.decide("k", 1000.0)

    assert killed_at_every_store(lambda: decide_together([(limit, "k") for limit in others], 1000.0), check) >= 3


def test_H04_killed_while_the_terms_change(tables: tuple[SharedTable, SharedTable]) -> None:
    ours, theirs = tables
    limit = ours.limit("l", Terms(60, 60.0, 100))
    for _ in range(80):
        limit.decide("k", 1000.0)
    lowered = theirs.limit("l", Terms(30, 60.0, 50))
    seen: list[float] = []

    def check() -> None:
        # Ten seconds at the old pace have passed; two copies stand there, and the reading goes on from the valid one.
        limit._read_pace()
        seen.append(limit._pace)
        clock = limit._clock + (1010.0 - limit._read_at) * limit._pace
        assert clock == pytest.approx(60.0 + 10.0)

    assert killed_at_every_store(lambda: lowered.decide("k", 1010.0), check) >= 4
    assert seen[0] == 1.0
    assert seen[-1] == 0.5
    assert lowered.used("k", 1010.0) == pytest.approx(70.0)


def test_killed_in_a_records_change(tables: tuple[SharedTable, SharedTable]) -> None:
    ours, theirs = tables
    record, other = ours.record("r", 6), theirs.record("r", 6)

    def change() -> None:
        n = other.begin()[0]
        other.commit([n + 1] * 6)

    def check() -> None:
        values = record.load()
        assert len(set(values)) == 1
        assert record.begin() == values
        record.commit([values[0] + 1] * 6)

    assert killed_at_every_store(change, check) >= 2


def test_killed_with_a_permit_half_taken(owner: SharedTableOwner, tables: tuple[SharedTable, SharedTable]) -> None:
    ours, theirs = tables
    permits, other = ours.permits("p"), theirs.permits("p")
    held = permits.take("k", 9)

    def check() -> None:
        assert permits.open("k") in (1, 2)
        owner.left(1)
        assert permits.open("k") == 1
        assert permits.open("new") == 0
        permits.give_back(held)
        assert permits.take("k", 9) == held

    for key in ("k", "new"):
        assert killed_at_every_store(lambda key=key: other.take(key, 9), check) >= 1


def test_killed_while_a_place_changes_its_name(
    owner: SharedTableOwner, tables: tuple[SharedTable, SharedTable]
) -> None:
    ours, theirs = tables
    kept = [ours.record(f"kept {i}", 1) for i in range(3)]
    for i, record in enumerate(kept):
        record.begin()
        record.commit([float(i)])
    old = ours.record("old", 4)
    old.begin()
    old.commit([1.0] * 4)
    del old

    def check() -> None:
        assert [record.load() for record in kept] == [[0.0], [1.0], [2.0]]
        owner.left(1)
        assert ours.record("new", 4).load() == [0.0] * 4  # whole, and not what was there before
        assert [ours.record(f"kept {i}", 1).load() for i in range(3)] == [[0.0], [1.0], [2.0]]
        mine = ours.record("old", 4)
        mine.begin()
        mine.commit([1.0] * 4)

    assert killed_at_every_store(lambda: theirs.record("new", 4), check) >= 4
