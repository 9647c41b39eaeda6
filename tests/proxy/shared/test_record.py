"""What a record promises, by each of its kinds."""

from __future__ import annotations

import pytest

from proxy.shared.columns import LocalColumns
from proxy.shared.layout import Geometry
from proxy.shared.record import LocalRecord, Record
from proxy.shared.table import SharedTable

SMALL = Geometry(limits=1, keys=1, permits=1, records=2, tallies=1)


@pytest.fixture(params=["local", "mapped"])
def record(request: pytest.FixtureRequest) -> Record:
    return LocalRecord(3) if request.param == "local" else SharedTable.alone(SMALL).record("a", 3)


def test_a_commit_publishes_all_and_a_cancel_nothing(record: Record) -> None:
    assert record.load() == [0.0, 0.0, 0.0]
    before = record.version()
    values = record.begin()
    values[1] = 5.0
    assert record.load() == [0.0, 0.0, 0.0]
    record.cancel()
    assert (record.load(), record.version()) == ([0.0, 0.0, 0.0], before)
    for n in range(1, 5):
        values = record.begin()
        values[0] += n
        values[2] -= 1
        record.commit(values)
        assert record.version() != before
        before = record.version()
    assert record.load() == record.begin() == [10.0, 0.0, -4.0]
    record.cancel()


def test_what_is_loaded_is_the_callers_own(record: Record) -> None:
    record.load()[0] = 7.0
    assert record.load()[0] == 0.0


@pytest.mark.parametrize("values", [[1.0], [1.0] * 4])
def test_a_commit_of_another_size_is_a_fault(record: Record, values: list[float]) -> None:
    record.begin()
    with pytest.raises(AssertionError):
        record.commit(values)


def test_columns_of_one_process() -> None:
    columns = LocalColumns(2)
    columns.mine[0] = 1.0
    assert columns.rows == ([1.0, 0.0],)
