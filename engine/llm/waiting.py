"""The sequences that wait for a slot, and which of them comes next.

Pure. Between keys the ledger decides: the key that has used the least of the device comes first. Within a key every
sequence has an instant at which it is due, and the earliest comes first:

    due = arrived + patience of its priority + stretch x the time that reading its prompt takes

So a short prompt passes long ones and an urgent one passes others, but only those that arrived within a bounded time
before it: whoever waits long enough is due before all that come later, and nobody starves.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter

from engine.llm.ledger import Ledger
from engine.llm.sequence import Sequence

PATIENCE_S = (0.0, 10.0, 60.0)  # by priority: how long a high, a normal and a low one let others pass
STRETCH = 8.0  # a prompt lets pass what comes within eight times its own reading time


def due_at(sequence: Sequence, read_s: float) -> float:
    """When the sequence is due, in monotonic seconds. read_s: what reading its prompt takes."""
    return sequence.arrived_at + PATIENCE_S[sequence.priority] + STRETCH * read_s


class Waiting:
    """A line per key, each in the order of ``due_at``."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lines: dict[str, list[Sequence]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        """In no order between keys. A moment's view: safe in another thread than the one that changes it."""
        for line in tuple(self._lines.values()):
            yield from tuple(line)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._lines.get(sequence.key, ())

    def add(self, sequence: Sequence) -> None:
        """Put it into its key's line, behind those that are due at the same time."""
        insort(self._lines.setdefault(sequence.key, []), sequence, key=attrgetter("due_at"))
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        """Take it out of its line. Raises ValueError when it does not wait."""
        line = self._lines.get(sequence.key, [])
        line.remove(sequence)
        self._count -= 1
        if not line:
            del self._lines[sequence.key]

    def next(self) -> Sequence | None:
        """Who comes next; parked ones are passed over. None: nobody."""
        firsts = (next((each for each in line if not each.parked), None) for line in self._lines.values())
        return min((each for each in firsts if each is not None), key=self.rank, default=None)

    def ahead_of(self, sequence: Sequence) -> list[Sequence]:
        """Those that will probably come before it: of its own line all that are due before, of others as many."""
        own = self._lines[sequence.key]
        position = own.index(sequence)
        others = (line for line in self._lines.values() if line is not own)
        return own[:position] + [each for line in others for each in islice(line, position + 1)]

    def rank(self, sequence: Sequence) -> tuple[int, float]:
        """Its place among all that are inside: the lowest comes first."""
        return self._ledger.used(sequence.key), sequence.due_at
