"""Names and their places: bounded, kept for whoever comes back, given away only when nobody uses them."""

from __future__ import annotations

import os

import pytest

from proxy.build import BuildError, build_snapshot
from proxy.cells import Cells
from proxy.gcra import Terms
from proxy.shared.layout import GEOMETRY_AT, Geometry, Layout
from proxy.shared.owner import SharedTableOwner
from proxy.shared.table import SharedTable, TableFull
from tests.proxy.make import proxy_config

SMALL = Geometry(limits=2, keys=16, permits=16, records=2, tallies=2, columns=4)
TERMS = Terms(2, 60.0, 2)


def test_what_does_not_fit_is_an_error_of_the_build_that_names_the_limit() -> None:
    config = proxy_config(
        upstreams={"app": {"servers": ["http://192.0.2.1"]}},
        limits={name: {"requests": "1/s"} for name in ("a", "b", "c")},
        routes=[{"to": "app", "policies": {"rate_limit": ["a", "b", "c"]}}],
    )
    table = SharedTable.alone(SMALL._replace(records=8, tallies=8))
    with pytest.raises(BuildError) as refused:
        build_snapshot(config, {}, ["127.0.0.1:8080"], None, Cells(), lambda line: None, table)
    assert refused.value.problems == [
        "routes.0.policies: 2 limits are in use at once, the most that the workers' common table holds; "
        "remove some of them"
    ]
    assert [table.limit(name, TERMS).decide("k", 0.0) for name in ("d", "e", "f")]  # and it has left no trace


def test_a_name_keeps_its_numbers_until_its_place_is_needed() -> None:
    table = SharedTable.alone(SMALL)
    first = table.limit("a", TERMS)
    assert first.decide("k", 0.0) == 1.0
    del first
    second, third = table.limit("b", TERMS), table.limit("a", TERMS)
    assert third.decide("k", 0.0) == 2.0
    with pytest.raises(TableFull):
        table.limit("c", TERMS)
    del third
    assert table.limit("c", TERMS).decide("k", 0.0) == 1.0  # in a's place, of which nothing is left
    assert table.limit("a", TERMS).decide("k", 0.0) == 1.0
    assert second.decide("k", 0.0) == 1.0


def test_a_place_is_used_as_long_as_one_process_uses_it_and_dies_with_the_last() -> None:
    owner = SharedTableOwner(SMALL)
    first, second = (SharedTable.attached(owner.fd, owner.enter()) for _ in range(2))
    kept = [first.record("a", 1), second.record("a", 1), second.record("b", 1)]
    with pytest.raises(TableFull, match="2 records are in use"):
        first.record("c", 1)
    kept[1].begin()
    kept[1].commit([5.0])
    owner.left(1)  # its marks go with it, whatever it still believes
    kept.append(first.record("c", 1))
    assert kept[0].load() == [5.0]
    with pytest.raises(TableFull):
        first.record("d", 1)
    owner.close()


def test_records_and_rows_of_another_size_are_others() -> None:
    table = SharedTable.alone(SMALL)
    record = table.record("a", 2)
    record.begin()
    record.commit([1.0, 2.0])
    assert table.record("a", 3).load() == [0.0] * 3
    assert table.record("a", 2).load() == [1.0, 2.0]
    with pytest.raises(
        ValueError, match="a record of 65 numbers was asked for; the workers' common table has room for 64"
    ):
        table.record("a", 65)
    with pytest.raises(ValueError, match="rows of 97 numbers"):
        table.columns("a", 97)


def test_rows_of_a_reused_place_are_zero_in_every_column() -> None:
    owner = SharedTableOwner(SMALL)
    first, second = (SharedTable.attached(owner.fd, owner.enter()) for _ in range(2))
    ours, theirs, other = first.columns("a", 3), second.columns("a", 3), second.columns("b", 3)
    ours.mine[0], theirs.mine[2], other.mine[1] = 1.0, 2.0, 3.0
    assert [list(row) for row in ours.rows] == [[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]]
    del ours, theirs
    assert [list(row) for row in first.columns("c", 3).rows] == [[0.0] * 3] * 2
    assert [list(row) for row in first.columns("b", 3).rows] == [[0.0] * 3, [0.0, 3.0, 0.0]]
    owner.close()


def test_a_row_outlives_its_worker() -> None:
    owner = SharedTableOwner(SMALL)
    column = owner.enter()
    SharedTable.attached(owner.fd, column).columns("a", 1).mine[0] = 4.0
    owner.left(column)
    assert owner.enter() == column
    assert list(SharedTable.attached(owner.fd, column).columns("a", 1).mine) == [4.0]
    owner.close()


def test_another_descriptor_is_refused() -> None:
    with open(__file__, "r+b") as file, pytest.raises(ValueError, match="is no shared table"):
        SharedTable.attached(file.fileno(), 0)


def test_the_table_of_an_earlier_release_is_refused() -> None:
    """As where the program is replaced under a supervisor that starts a worker then."""
    owner = SharedTableOwner(SMALL)
    layout = Layout(SMALL)
    os.pwrite(owner.fd, bytes(16), 8 * (GEOMETRY_AT + Geometry._fields.index("journal")))
    os.ftruncate(owner.fd, layout.answers.end)
    with pytest.raises(ValueError, match="is no shared table of this release"):
        SharedTable.attached(owner.fd, owner.enter())
    owner.close()
