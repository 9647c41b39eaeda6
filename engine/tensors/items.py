"""A request's tensors as items of a batch: cut where they have more rows than a run, with what decides who shares one.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from numpy.typing import NDArray

from engine.batching.item import Item
from engine.batching.settings import Cost
from engine.tensor_facts import TensorModelFacts


def num_rows(feeds: Mapping[str, NDArray[Any]]) -> int:
    """How many rows a request asks for; an input that it leaves empty has none."""
    return max(len(array) for array in feeds.values())


def row_size(feeds: Mapping[str, NDArray[Any]], facts: TensorModelFacts, cost: Cost) -> int:
    """What each row costs, as ``Item.size`` has it: of tokens, the lengths of its axes that may vary, multiplied; of
    pixels, its two longest axes, multiplied; of several inputs that with the most."""
    if cost == "items":
        return 1
    if cost == "pixels":
        return max((prod(sorted(array.shape[1:])[-2:]) for array in feeds.values() if len(array)), default=1)
    lengths = [1]
    for tensor in facts.inputs:
        if (array := feeds.get(tensor.name)) is not None and len(array):
            pairs = zip(array.shape[1:], tensor.shape[1:], strict=True)
            lengths.append(prod(length for length, told in pairs if told == -1))
    return max(lengths)


def cut(feeds: Mapping[str, NDArray[Any]], rows: int, max_batch: int, size: int = 1) -> list[Item]:
    """Items of at most max_batch rows, views of the feeds, whose arrays have ``rows`` rows or none. size: of a row.

    Only items whose inputs have equal shapes share a run, and only if the same inputs are empty.
    """
    shape = tuple((name, array.shape[1:], not len(array)) for name, array in feeds.items())
    if rows <= max_batch:
        return [Item(dict(feeds), rows, size, shape)]
    return [
        Item(
            {name: array[begin : begin + max_batch] for name, array in feeds.items()},
            min(max_batch, rows - begin),
            size,
            shape,
        )
        for begin in range(0, rows, max_batch)
    ]
