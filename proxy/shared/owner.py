"""The shared table as the supervisor sees it: made once, a column for each worker, and a dead worker's column cleared.

It never takes a lock, so no worker can ever make the supervisor wait.
"""

from __future__ import annotations

import os

from proxy.shared.layout import COLUMNS_AT, EPOCH_AT, Geometry, create


class NoColumn(Exception):
    """As many processes are attached as there are columns."""


class SharedTableOwner:
    """Keeps the descriptor that workers inherit."""

    def __init__(self, geometry: Geometry | None = None) -> None:
        self.fd, self._memory = create(geometry or Geometry())
        self._used: set[int] = set()

    def enter(self) -> int:
        """A column for a worker, before it is started: from now on those that are there lock. Raises NoColumn."""
        most = self._memory.layout.geometry.columns
        column = next((i for i in range(most) if i not in self._used), None)
        if column is None:
            raise NoColumn(f"{most} workers are there, the most that the shared table has columns for")
        self._used.add(column)
        words = self._memory.words
        words[COLUMNS_AT] = max(words[COLUMNS_AT], column + 1)
        if len(self._used) > 1 and words[EPOCH_AT] % 2 == 0:
            words[EPOCH_AT] += 1
        return column

    def left(self, column: int) -> None:
        """A worker has ended, in whatever way: its permits are given back, its marks are gone."""
        layout, memory = self._memory.layout, self._memory
        counts_at = layout.counts + column * layout.counts_stride
        memory.octets[counts_at : counts_at + layout.counts_stride] = bytes(layout.counts_stride)
        marks_at = layout.marks + column * layout.marks_stride
        memory.octets[marks_at : marks_at + layout.marks_stride] = bytes(layout.marks_stride)
        memory.words[layout.acks // 8 + column] = 0
        self._used.discard(column)

    def settle(self) -> None:
        """Spare a worker that is alone its locks. Not at once after ``left``: a successor would wait for its word."""
        words = self._memory.words
        if len(self._used) <= 1 and words[EPOCH_AT] % 2 == 1:
            words[EPOCH_AT] += 1

    def close(self) -> None:
        """Let go of the descriptor; what others have mapped stays."""
        os.close(self.fd)
