"""What clients send as it is (pictures, texts) on its way through a tensor model: made into rows, and run together.

Owns that a request's rows are made ready side by side in the pool, that rows of one shape go to the model as one, and
that the first row at fault ends the request and what else it waits for. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.batching.request import Runner
from engine.batching.waiting import NORMAL
from engine.errors import invalid
from engine.pool import Pool
from engine.tensors.model import TensorModel

Feeds = dict[str, NDArray[Any]]
#: By the name of an input: a file or a text for its adapter, or one row of a tensor, its first axis included.
RawRow = Mapping[str, "bytes | str | NDArray[Any]"]
T = TypeVar("T")


async def infer_raw(
    pool: Pool,
    device: Runner,
    model: TensorModel,
    rows: Sequence[RawRow],
    places: Sequence[str],
    *,
    outputs: Sequence[str],
    level: int = NORMAL,
    deadline_at: float | None = None,
) -> list[Feeds]:
    """The outputs of each row, in their order, each with a first axis of one.

    places: where in the request each row stood. Raises RequestError as the adapters and the model do.
    """
    check_rows(model, rows, places)
    ready = await _together([_prepare(pool, model, row, place) for row, place in zip(rows, places, strict=True)])
    groups: dict[Any, list[int]] = {}
    for index, feeds in enumerate(ready):
        key = tuple((name, array.shape[1:], len(array)) for name, array in sorted(feeds.items()))
        groups.setdefault(key, []).append(index)
    answers = await _together(
        [
            model.infer_prepared(
                device, _join([ready[index] for index in group]), outputs=outputs, level=level, deadline_at=deadline_at
            )
            for group in groups.values()
        ]
    )
    results: list[Feeds] = [{}] * len(rows)
    for group, answer in zip(groups.values(), answers, strict=True):
        for at, index in enumerate(group):
            results[index] = {name: array[at : at + 1] for name, array in answer.items()}
    return results


def check_rows(model: TensorModel, rows: Sequence[RawRow], places: Sequence[str]) -> None:
    """Raises RequestError (400) when a row brings what there is no adapter for, or leaves one out."""
    for row, place in zip(rows, places, strict=True):
        for name, raw in row.items():
            if isinstance(raw, bytes | str) and name not in model.adapters:
                raise invalid(f"{place}: the model {model.name!r} has no adapter for its input {name!r}", "input")
        if missing := sorted(model.adapters.keys() - row.keys()):
            raise invalid(f"{place} has nothing for the input {missing[0]!r} of the model {model.name!r}", "input")


async def _prepare(pool: Pool, model: TensorModel, row: RawRow, place: str) -> Feeds:
    feeds: Feeds = dict(model.plain_feeds)
    for name, raw in row.items():
        if not isinstance(raw, bytes | str):
            feeds[name] = raw
            continue
        adapter = model.adapters[name]
        work = adapter.prepare
        feeds |= work(raw, place) if adapter.is_quick(raw) else await pool.run(work, raw, place)
    return feeds


def _join(rows: Sequence[Feeds]) -> Feeds:
    if len(rows) == 1:
        return rows[0]
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What each comes to; the first that fails, or the end of the caller, cancels the others."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
