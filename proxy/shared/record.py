"""A few numbers under one name that all workers read and change whole, never half. Pure.

How a change goes: ``begin`` enters the lock and gives the numbers as they are now, ``commit`` publishes all of them at
once and leaves the lock, ``cancel`` leaves it with nothing changed. Nobody waits between the two, for an answer or for
anything else: every other worker that wants to decide would wait with it. ``load`` takes no lock; it gives what was
last committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Record(Protocol):
    """The numbers begin as zeros. Whoever calls ``begin`` calls ``commit`` or ``cancel`` before it returns."""

    def load(self) -> list[float]:
        """What was last committed, whole: never half of a change. A list of the caller's own."""

    def begin(self) -> list[float]:
        """Enter the lock; the numbers, which nobody else changes until ``commit`` or ``cancel``."""

    def commit(self, values: Sequence[float]) -> None:
        """Publish as many numbers as there are, whole, and leave the lock."""

    def cancel(self) -> None:
        """Leave the lock; nothing has changed."""

    def version(self) -> int:
        """One more after every ``commit``; one read, so that a hot path may ask each time."""


class LocalRecord:
    """A record of one process: for tests, and for a worker that runs alone."""

    __slots__ = ("_inside", "_values", "_version")

    def __init__(self, size: int) -> None:
        self._values = [0.0] * size
        self._version = 0
        self._inside = False

    def load(self) -> list[float]:
        return self._values[:]

    def begin(self) -> list[float]:
        assert not self._inside, "a record's change was begun inside of another"
        self._inside = True
        return self._values[:]

    def commit(self, values: Sequence[float]) -> None:
        assert self._inside, "a record's change ended that was not begun"
        assert len(values) == len(self._values)
        self._inside = False
        self._version += 1
        self._values = list(values)

    def cancel(self) -> None:
        assert self._inside, "a record's change ended that was not begun"
        self._inside = False

    def version(self) -> int:
        return self._version
