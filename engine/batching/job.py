"""The two sides of a batching lane: the job that a request brings, and the model that runs batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from engine.batching.item import Item
from engine.batching.waiting import NORMAL
from engine.errors import RequestError
from engine.job import Job


class WrongResult(Exception):
    """What a run gave cannot be told apart by items, so it is nobody's; running it again would give no better."""


class Runnable(Protocol):
    """A model as the lane calls it, on the device's thread.

    One with a ``width`` above 1 is a WideRunnable.
    """

    def run(self, payloads: Sequence[Any]) -> Sequence[Any | RequestError]:
        """One result for each payload, in their order; a RequestError in its place fails that one's job alone.

        Raises WrongResult: all of them fail. Raises anything else: its halves are run again, and what raises alone
        is at fault.
        """
        ...


@runtime_checkable
class WideRunnable(Runnable, Protocol):
    """A model of which several runs may go on beside each other, each with its share of the cores."""

    @property
    def width(self) -> int:
        """So many."""
        ...

    def run_beside(self, payloads: Sequence[Any]) -> Sequence[Any | RequestError]:
        """As ``run``, with one share of the cores; on any thread."""
        ...


@dataclass(eq=False, kw_only=True)
class BatchJob(Job):
    """The items of one request. Its only event is the list of their results in order, or a RequestError."""

    items: Sequence[Item]  # at least one
    level: int = NORMAL  # 0 high, 1 normal, 2 low
    deadline_at: float | None = None  # monotonic seconds; None: whenever
    noun: str | None = None  # what an error calls an item ("input": input[3]); None: it is the only one
    held_s: float = 0.0  # that it was kept waiting for company
    results: list[Any] = field(init=False)
    num_left: int = field(init=False)

    def __post_init__(self) -> None:
        self.results = [None] * len(self.items)
        self.num_left = len(self.items)
