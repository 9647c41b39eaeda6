"""The items that wait for a run of one model: whose they are, who leads next, and which are alike.

Pure. Jobs lead in turn, those of a more urgent level before others; entries of one shape are found by their size.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from engine.batching.item import Item

J = TypeVar("J", bound=Hashable)

HIGH, NORMAL, LOW = LEVELS = (0, 1, 2)  # the most urgent first


class Entry(Generic[J]):
    """One item: the index-th of its job."""

    __slots__ = ("index", "item", "job")

    def __init__(self, job: J, index: int, item: Item) -> None:
        self.job = job
        self.index = index
        self.item = item


class _Job:
    __slots__ = ("due_at", "entries", "level", "since")

    def __init__(self, since: float, level: int, due_at: float) -> None:
        self.since = since
        self.level = level
        self.due_at = due_at
        self.entries: dict[Entry[Any], None] = {}  # those that no batch has taken yet, in order


class Waiting(Generic[J]):
    """The waiting items of one model."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._jobs: dict[J, _Job] = {}
        self._turns: tuple[dict[J, None], ...] = tuple({} for _ in LEVELS)  # of each level, who leads next
        self._alike: dict[tuple[Hashable, int], dict[int, dict[Entry[J], None]]] = {}  # shape, level -> size -> entries

    def add(self, job: J, items: Sequence[Item], since: float, level: int, due_at: float) -> None:
        """A job of at least one item."""
        waiting = self._jobs[job] = _Job(since, level, due_at)
        self._turns[level][job] = None
        for index, item in enumerate(items):
            entry = Entry(job, index, item)
            waiting.entries[entry] = None
            self._alike.setdefault((item.shape, level), {}).setdefault(item.size, {})[entry] = None
            self.num_rows += item.rows

    def remove(self, entry: Entry[J]) -> None:
        """A batch has taken it."""
        waiting, item = self._jobs[entry.job], entry.item
        del waiting.entries[entry]
        if not waiting.entries:
            del self._jobs[entry.job], self._turns[waiting.level][entry.job]
        key = item.shape, waiting.level
        by_size = self._alike[key]
        del by_size[item.size][entry]
        if not by_size[item.size]:
            del by_size[item.size]
            if not by_size:
                del self._alike[key]
        self.num_rows -= item.rows

    def drop(self, job: J) -> None:
        """Remove what is left of a job. Unknown: ignored."""
        if waiting := self._jobs.get(job):
            for entry in tuple(waiting.entries):
                self.remove(entry)

    def leader(self) -> Entry[J] | None:
        """The first item of the job whose turn it is; None: nothing waits."""
        job = next((job for turns in self._turns for job in turns), None)
        return None if job is None else next(iter(self._jobs[job].entries))

    def to_the_back(self, job: J) -> None:
        """It has led; the others of its level come first. Ignored when nothing of it is left."""
        if waiting := self._jobs.get(job):
            turns = self._turns[waiting.level]
            turns[job] = turns.pop(job)

    def near(self, item: Item) -> Iterator[tuple[int, Iterable[Entry[J]]]]:
        """What waits of this item's shape, by size: the more urgent levels first, in each the nearest sizes."""
        for level in LEVELS:
            if by_size := self._alike.get((item.shape, level)):
                for size in sorted(by_size, key=lambda size: abs(size - item.size)):
                    yield size, by_size[size]

    def since(self) -> float:
        """When the first that waits came."""
        return min((waiting.since for waiting in self._jobs.values()), default=math.inf)

    def due_at(self, jobs: Iterable[J] | None = None) -> float:
        """When the first of these jobs, or of all, is overdue."""
        wanted = self._jobs.values() if jobs is None else [self._jobs[job] for job in jobs]
        return min((waiting.due_at for waiting in wanted), default=math.inf)

    def overdue(self, now: float) -> list[J]:
        """Those that waited for too long."""
        return [job for job, waiting in self._jobs.items() if waiting.due_at <= now]
