"""A record in the shared mapping: two copies, and one word that says which of them is valid."""

from __future__ import annotations

import platform
from array import array
from collections.abc import Sequence
from typing import Final

from proxy.shared.layout import RECORD_HEAD_WORDS, RECORD_LOCKS, Memory, locking, unlocking
from proxy.shared.locks import Locks
from proxy.shared.places import Lease

#: Whether a reader sees another processor's stores in the order in which they were made.
_ORDERED: Final = platform.machine() in ("x86_64", "AMD64")


class MappedRecord:
    """See proxy.shared.record.Record. A process killed before ``commit`` has stored its word has changed nothing."""

    __slots__ = ("_copies_at", "_doubles", "_lease", "_lock", "_locks", "_size", "_unlock", "_version_at", "_words")

    def __init__(self, size: int, memory: Memory, locks: Locks, lease: Lease) -> None:
        layout = memory.layout
        at = (layout.records + lease.index * layout.record_bytes) // 8
        self._lease = lease
        self._locks = locks
        self._lock = locking(RECORD_LOCKS + lease.index)
        self._unlock = unlocking(RECORD_LOCKS + lease.index)
        self._words = memory.words
        self._doubles = memory.doubles
        self._size = size
        self._version_at = at
        copies_at = at + RECORD_HEAD_WORDS
        self._copies_at = (copies_at, copies_at + layout.geometry.numbers)

    def version(self) -> int:
        return self._words[self._version_at]

    def load(self) -> list[float]:
        if not _ORDERED:
            values = self.begin()
            self.cancel()
            return values
        while True:
            version = self._words[self._version_at]
            values = self._copy(version)
            if self._words[self._version_at] == version:
                return values

    def begin(self) -> list[float]:
        self._locks.stay(self._lock)
        return self._copy(self._words[self._version_at])

    def commit(self, values: Sequence[float]) -> None:
        assert len(values) == self._size
        version = self._words[self._version_at] + 1
        at = self._copies_at[version % 2]
        self._doubles[at : at + self._size] = memoryview(array("d", values))
        self._words[self._version_at] = version
        self._locks.go(self._unlock)

    def cancel(self) -> None:
        self._locks.go(self._unlock)

    def _copy(self, version: int) -> list[float]:
        at = self._copies_at[version % 2]
        return list(self._doubles[at : at + self._size])
