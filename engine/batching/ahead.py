"""The one batch that is made ready while the device runs the batch before it.

A batch is formed ahead only when it is full, so that nobody who comes meanwhile could have joined it; what is more
urgent waits for one batch at most. Its arrays are put together in a thread beside the run. Whoever leaves or is too
late until its turn is left out, and then the arrays are put together anew. Where runs go on beside each other there is
no need: one is made ready while another goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from engine.batching.job import BatchJob
from engine.batching.waiting import Entry
from engine.batching.window import Closing
from engine.errors import RequestError


@runtime_checkable
class Gathers(Protocol):
    """A Runnable whose ``run`` is ``run_gathered(gather(payloads))``."""

    def gather(self, payloads: Sequence[Any]) -> Any:
        """The arrays of a run. Any thread, also while another run goes on."""
        ...

    def run_gathered(self, gathered: Any) -> Sequence[Any | RequestError]:
        """As ``Runnable.run``, on the device's thread."""
        ...


@dataclass(frozen=True, slots=True)
class Ahead:
    """A batch, formed, and its arrays in the making."""

    entries: Sequence[Entry[BatchJob]]
    closing: Closing
    pending_rows: int
    gathered: Future[Any]


class Gatherer:
    """The thread in which arrays are put together; it starts with the first."""

    def __init__(self, model: Gathers) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, "gather")

    def begin(self, entries: Sequence[Entry[BatchJob]], closing: Closing, pending_rows: int) -> Ahead:
        """Begin with this batch."""
        payloads = [entry.item.payload for entry in entries]
        return Ahead(entries, closing, pending_rows, self._thread.submit(self._model.gather, payloads))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()
