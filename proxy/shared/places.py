"""Which place of the mapping is whose: limits and records by name, bounded, and given anew only when nobody uses them.

A worker that uses a place has a mark in its own column, so the mark ends with the worker. What nobody marks keeps its
numbers all the same, for a worker that is started again, or a configuration that comes back; it is given to another
name only when all places are taken.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from proxy.shared.layout import COLUMNS_AT, PLACES_LOCK, SECRET_AT, SECRET_BYTES, Layout, Memory, locking, unlocking
from proxy.shared.locks import Locks

_NAME: Final = Struct("@QQ")
_LOCK, _DONE = locking(PLACES_LOCK), unlocking(PLACES_LOCK)


class _Kind(NamedTuple):
    """One kind of places: which slots of the directory are theirs, and where they stand."""

    name: str
    first: int  # slot
    most: int
    area: int  # byte at which they begin, one after the other
    size: int  # bytes of one
    stride: int = 0  # bytes from one column's to the next one's; 0: they have no columns


class TableFull(ValueError):
    """All places are in use."""


class Lease:
    """A place that this process uses as long as the lease is there."""

    __slots__ = ("_places", "_slot", "index")

    def __init__(self, places: Places, slot: int, index: int) -> None:
        self._places = places
        self._slot = slot
        self.index = index  # among the places of its kind

    def __del__(self) -> None:
        self._places.let_go(self._slot)


class Places:
    """The directory, as one process sees it."""

    def __init__(self, memory: Memory, locks: Locks, column: int) -> None:
        self._memory = memory
        self._locks = locks
        layout = memory.layout
        self._own_marks = layout.marks + column * layout.marks_stride
        self._num_leases: dict[int, int] = {}
        self._limits, self._records, self._tallies, self._windows = _kinds(layout)

    def window(self, name: str) -> Lease:
        """The place of a budget. Raises TableFull."""
        return self._lease(self._windows, name)

    def limit_beside(self, name: str) -> tuple[Lease, Lease | None]:
        """The place of a limit, and that of the limit by a sliding window of the same name, if there is one. Raises
        TableFull."""
        return self._lease_beside(self._limits, name, self._windows)

    def window_beside(self, name: str) -> tuple[Lease, Lease | None]:
        """The same the other way round. Raises TableFull."""
        return self._lease_beside(self._windows, name, self._limits)

    def record(self, name: str, size: int) -> Lease:
        """The place of a record; with another size it is another record. Raises TableFull."""
        return self._lease(self._records, f"{size} {name}")

    def tally(self, name: str, size: int) -> Lease:
        """The place of a tally in each column; with another size it is another tally. Raises TableFull."""
        return self._lease(self._tallies, f"{size} {name}")

    def let_go(self, slot: int) -> None:
        """One lease less; without any, our mark goes."""
        self._num_leases[slot] -= 1
        if not self._num_leases[slot]:
            del self._num_leases[slot]
            self._memory.octets[self._own_marks + slot] = 0

    def _lease(self, kind: _Kind, name: str) -> Lease:
        return self._lease_beside(kind, name, None)[0]

    def _lease_beside(self, kind: _Kind, name: str, other: _Kind | None) -> tuple[Lease, Lease | None]:
        memory = self._memory
        wanted = self._digest(kind, name)
        self._locks.enter(_LOCK)
        try:
            index = self._find(kind, wanted)
            if index < 0:
                index = self._vacate(kind)
                at = (memory.layout.names + 16 * (kind.first + index)) // 8
                first, second = _NAME.unpack(wanted)
                memory.words[at + 1] = second
                memory.words[at] = first
            beside = self._find(other, self._digest(other, name)) if other is not None else -1
            known = self._marked(other, beside) if other is not None and beside >= 0 else None
            return self._marked(kind, index), known
        finally:
            self._locks.leave(_DONE)

    def _digest(self, kind: _Kind, name: str) -> bytes:
        secret = bytes(self._memory.octets[8 * SECRET_AT : 8 * SECRET_AT + SECRET_BYTES])
        return blake2b(f"{kind.name} {name}".encode("utf-8", "surrogateescape"), digest_size=16, key=secret).digest()

    def _marked(self, kind: _Kind, index: int) -> Lease:
        slot = kind.first + index
        self._memory.octets[self._own_marks + slot] = 1
        self._num_leases[slot] = self._num_leases.get(slot, 0) + 1
        return Lease(self, slot, index)

    def _find(self, kind: _Kind, wanted: bytes) -> int:
        begin = self._memory.layout.names + 16 * kind.first
        named = self._memory.octets[begin : begin + 16 * kind.most].tobytes()
        at = named.find(wanted)
        while at >= 0 and at % 16:
            at = named.find(wanted, at + 1)
        return at // 16 if at >= 0 else -1

    def _vacate(self, kind: _Kind) -> int:
        """A place without a name, all zeros."""
        memory = self._memory
        begin = (memory.layout.names + 16 * kind.first) // 8
        names = memory.words[begin : begin + 2 * kind.most : 2].tolist()
        index = names.index(0) if 0 in names else self._unmarked(kind)
        if index < 0:
            message = f"{kind.most} {kind.name} are in use at once, the most that the workers' common table holds"
            raise TableFull(f"{message}; remove some of them")
        at = begin + 2 * index
        memory.words[at] = 0
        if memory.words[at + 1]:  # somebody was here
            for column in range(memory.words[COLUMNS_AT] if kind.stride else 1):
                start = kind.area + column * kind.stride + index * kind.size
                memory.octets[start : start + kind.size] = bytes(kind.size)
            memory.words[at + 1] = 0
        return index

    def _unmarked(self, kind: _Kind) -> int:
        memory, layout = self._memory, self._memory.layout
        marked = 0
        for column in range(memory.words[COLUMNS_AT]):
            begin = layout.marks + column * layout.marks_stride + kind.first
            marked |= int.from_bytes(memory.octets[begin : begin + kind.most], "little")
        return marked.to_bytes(kind.most, "little").find(0)


def _kinds(layout: Layout) -> tuple[_Kind, _Kind, _Kind, _Kind]:
    geometry = layout.geometry
    limits, records, tallies, windows = geometry.limits, geometry.records, geometry.tallies, geometry.windows
    return (
        _Kind("limits", 0, limits, layout.limits, layout.limit_bytes),
        _Kind("records", limits, records, layout.records, layout.record_bytes),
        _Kind("tallies", limits + records, tallies, layout.rows, layout.row_bytes, layout.rows_stride),
        _Kind("sliding limits and budgets", limits + records + tallies, windows, layout.windows, layout.window_bytes),
    )
