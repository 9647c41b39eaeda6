"""What every adapter has in common: it makes what a client sends into one row of a model's inputs."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray


class Adapter(Protocol):
    """For one kind of thing: images, or texts."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The model's own inputs that it fills."""
        ...

    def is_quick(self, raw: bytes | str) -> bool:
        """Whether ``prepare`` takes so short a time that no thread is worth waking for it."""
        ...

    def prepare(self, raw: bytes | str, place: str) -> dict[str, NDArray[Any]]:
        """The feeds of one row for the fused graph, by name, each with a first axis of one row, or of none where the
        row leaves an input empty.

        Blocking unless it is quick; for a thread of engine/pool.py. Raises RequestError (400 or 422) that names
        ``place``, which is where in the request the thing stood.
        """
        ...
