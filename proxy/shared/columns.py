"""Numbers that each worker writes in a row of its own and all workers read: sums without a lock. Pure.

A row has one writer, so nothing that is counted is ever lost, and counting costs as much as writing to a list. A reader
may see a row between two writes of one change; whoever needs more than that keeps it in a ``Record``. A row outlives
its worker: the successor finds what its predecessor wrote.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Protocol, TypeAlias

#: One worker's numbers: a list, or doubles in shared memory.
Row: TypeAlias = "MutableSequence[float] | memoryview[float]"


class Columns(Protocol):
    """The rows under one name; they begin as zeros. ``mine`` is this worker's and one of ``rows``."""

    @property
    def mine(self) -> Row: ...

    @property
    def rows(self) -> tuple[Row, ...]: ...


class LocalColumns:
    """The columns of one process: for tests, and for a worker that runs alone. rows: of workers that share them."""

    __slots__ = ("mine", "rows")

    def __init__(self, size: int, rows: tuple[Row, ...] = ()) -> None:
        self.mine: Row = rows[0] if rows else [0.0] * size
        self.rows: tuple[Row, ...] = rows or (self.mine,)
