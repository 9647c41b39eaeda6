"""The shared table as a worker uses it: limits, permits and records by name.

Owns the view of the mapping, the worker's column in it and the one set of locks. Knows nothing of policies or breakers.
"""

from __future__ import annotations

import os
from hashlib import blake2b

from proxy.gcra import Terms
from proxy.shared.answers import SharedAnswers
from proxy.shared.budget import BudgetMemory
from proxy.shared.columns import Columns
from proxy.shared.layout import SECRET_AT, SECRET_BYTES, Geometry, Memory, attach, create
from proxy.shared.limit import SharedLimit
from proxy.shared.locks import Locks
from proxy.shared.mapped_columns import MappedColumns
from proxy.shared.mapped_record import MappedRecord
from proxy.shared.permits import Permits
from proxy.shared.places import Places, TableFull
from proxy.shared.record import Record
from proxy.shared.sliding import MAX_COUNT, SlidingLimit

__all__ = ["SharedTable", "TableFull", "Terms"]


class SharedTable:
    """One process's end. ``fd`` is kept open: its locks are the process's."""

    def __init__(self, memory: Memory, fd: int, column: int) -> None:
        self._memory = memory
        self._column = column
        self._locks = Locks(memory, fd, column)
        self._places = Places(memory, self._locks, column)

    @classmethod
    def attached(cls, fd: int, column: int) -> SharedTable:
        """The table behind the supervisor's descriptor, with the column that it has given this process."""
        return cls(attach(fd), fd, column)

    @classmethod
    def alone(cls, geometry: Geometry | None = None) -> SharedTable:
        """A private table, for a worker without a supervisor and for tests."""
        fd, memory = create((geometry or Geometry())._replace(columns=1))
        os.close(fd)  # alone, nobody ever locks
        return cls(memory, -1, 0)

    def limit(self, name: str, terms: Terms) -> SharedLimit:
        """The limit of this name under these terms. Raises TableFull."""
        memory, locks = self._memory, self._locks
        lease, known = self._places.limit_beside(name)
        counts = known is not None and terms.burst <= MAX_COUNT
        before = SlidingLimit(terms, memory, locks, known, name) if counts and known is not None else None
        return SharedLimit(terms, memory, locks, lease, name, before)

    def sliding(self, name: str, terms: Terms) -> SlidingLimit:
        """The limit of this name by a sliding window. Raises TableFull; ValueError: it counts too far."""
        memory, locks = self._memory, self._locks
        lease, known = self._places.window_beside(name)
        before = SharedLimit(terms, memory, locks, known, name) if known is not None else None
        return SlidingLimit(terms, memory, locks, lease, name, before)

    def budget(self, name: str, rolling_s: float) -> BudgetMemory:
        """The memory of the budget of this name; rolling_s: 0.0 by a calendar. Raises TableFull."""
        return BudgetMemory(rolling_s, self._memory, self._locks, self._places.window(f"budget {name}"), name)

    def permits(self, name: str) -> Permits:
        """Permits by keys of this name's own."""
        return Permits(self._memory, self._locks, self._column, name)

    def answers(self) -> SharedAnswers:
        """The answers that are kept for requests which are sent again."""
        return SharedAnswers(self._memory, self._locks, self._memory.layout.answers)

    def journal(self) -> SharedAnswers:
        """The same for answers that are on their way into a file: they take no room from those that are nowhere
        else."""
        return SharedAnswers(self._memory, self._locks, self._memory.layout.journal)

    def record(self, name: str, size: int) -> Record:
        """The record of this name with ``size`` numbers, zeros at first. Raises TableFull; ValueError: too large."""
        most = self._memory.layout.geometry.numbers
        if size > most:
            raise ValueError(f"a record of {size} numbers was asked for; the workers' common table has room for {most}")
        return MappedRecord(size, self._memory, self._locks, self._places.record(name, size))

    def columns(self, name: str, size: int) -> Columns:
        """The rows of this name, of ``size`` numbers each, zeros at first. Raises TableFull; ValueError: too large."""
        most = self._memory.layout.geometry.row
        if size > most:
            raise ValueError(f"rows of {size} numbers were asked for; the workers' common table has room for {most}")
        return MappedColumns(size, self._memory, self._column, self._places.tally(name, size))

    def secret(self, purpose: str) -> bytes:
        """A key for one purpose, which all workers have and nobody else; it ends with the table."""
        own = bytes(self._memory.octets[8 * SECRET_AT : 8 * SECRET_AT + SECRET_BYTES])
        return blake2b(purpose.encode(), digest_size=32, key=own).digest()

    def look(self) -> None:
        """Take note of other workers that come or go. To be called now and then, beside all decisions."""
        self._locks.look()

    @property
    def may_decide(self) -> bool:
        """Whether all other workers know that this one is there: nothing is decided, nor asked for here, before."""
        return self._locks.all_lock
