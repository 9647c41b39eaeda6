"""A request's tensors as items of a batch: cut where they have more rows than a run, with what decides who shares one.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from engine.batching.item import Item


def num_rows(feeds: Mapping[str, NDArray[Any]]) -> int:
    """How many rows a request asks for; an input that it leaves empty has none."""
    return max(len(array) for array in feeds.values())


def cut(feeds: Mapping[str, NDArray[Any]], rows: int, max_batch: int) -> list[Item]:
    """Items of at most max_batch rows, views of the feeds, whose arrays have ``rows`` rows or none.

    Only items whose inputs have equal shapes share a run, and only if the same inputs are empty.
    """
    shape = tuple((name, array.shape[1:], not len(array)) for name, array in feeds.items())
    if rows <= max_batch:
        return [Item(dict(feeds), rows, shape=shape)]
    return [
        Item(
            {name: array[begin : begin + max_batch] for name, array in feeds.items()},
            min(max_batch, rows - begin),
            shape=shape,
        )
        for begin in range(0, rows, max_batch)
    ]
