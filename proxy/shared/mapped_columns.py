"""Rows of numbers in the shared mapping, one per worker: see proxy.shared.columns."""

from __future__ import annotations

from proxy.shared.columns import Row
from proxy.shared.layout import COLUMNS_AT, Memory
from proxy.shared.places import Lease


class MappedColumns:
    """The rows of all columns that were ever in use: a worker's row outlives it, and its successor goes on in it."""

    __slots__ = ("_at", "_column", "_doubles", "_lease", "_rows", "_size", "_stride", "_words")

    def __init__(self, size: int, memory: Memory, column: int, lease: Lease) -> None:
        layout = memory.layout
        self._lease = lease
        self._words = memory.words
        self._doubles = memory.doubles
        self._at = (layout.rows + lease.index * layout.row_bytes) // 8
        self._stride = layout.rows_stride // 8
        self._size = size
        self._column = column
        self._rows: tuple[Row, ...] = ()

    @property
    def mine(self) -> Row:
        return self.rows[self._column]

    @property
    def rows(self) -> tuple[Row, ...]:
        num_columns = self._words[COLUMNS_AT]
        if len(self._rows) != num_columns:
            starts = range(self._at, self._at + num_columns * self._stride, self._stride)
            self._rows = tuple(self._doubles[start : start + self._size] for start in starts)
        return self._rows
