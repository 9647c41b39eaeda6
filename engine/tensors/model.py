"""A tensor model as a request sees it: named arrays in, named arrays out, awaited on the event loop.

Owns a request's way through the model: the check of its tensors, its division into runs, its rows among those that
wait, and that whatever ends it gives everything back. Knows no HTTP and no runtime.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from engine.admission import Admission
from engine.batching.item import Item
from engine.batching.lane import BatchLane
from engine.batching.request import Runner, run_on
from engine.batching.settings import DEFAULTS, BatchingSettings
from engine.batching.waiting import NORMAL
from engine.errors import Kind, RequestError
from engine.model import ModelKind
from engine.model_folder import ModelFolder
from engine.settings import ModelSettings
from engine.tensors.check import Feeds, check_inputs
from engine.tensors.items import cut, num_rows, row_size
from engine.tensors.runnable import GraphRunnable

if TYPE_CHECKING:
    from engine.adapters.adapter import Adapter

_SHORTEST_S = 1.0


class TensorModel:
    """One tensor model, ready to serve (engine.model.Model)."""

    kind: ClassVar[ModelKind] = "tensor"

    def __init__(
        self,
        folder: ModelFolder,
        settings: ModelSettings,
        runnable: GraphRunnable,
        *,
        plain_feeds: Mapping[str, NDArray[Any]] | None = None,
        adapters: Mapping[str, Adapter] | None = None,
        labels: Sequence[str] = (),
        created: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """runnable: the folder's graph, maybe with more inputs and outputs. plain_feeds: what those inputs are given
        when a request brings tensors. adapters: by the input that each fills. labels: of the classes, in order."""
        self.folder = folder
        self.facts = folder.tensors
        self.adapters = dict(adapters or {})
        self.labels = tuple(labels)
        self.name = settings.name
        self.created = created
        batching = batching_of(folder, settings)
        self.lane = BatchLane(self.name, runnable, batching, clock=clock, divided=False)
        self.max_batch = self.lane.max_batch
        self.admission = Admission(running=self.max_batch, queue=settings.max_queue, work_s=self.lane.work_s)
        self.max_rows = (settings.max_queue + self.max_batch) * self.max_batch  # so that every place can be used
        self.num_instances = runnable.num_instances
        self.num_rows = 0  # of all requests inside
        self.num_inferences = 0  # these two only grow
        self.num_rows_done = 0
        self._runnable = runnable
        self._cost = batching.cost or "items"
        self.plain_feeds = dict(plain_feeds or {})
        self._clock = clock

    async def infer(
        self,
        device: Runner,
        inputs: Mapping[str, NDArray[Any]],
        *,
        level: int = NORMAL,
        deadline_at: float | None = None,
    ) -> Feeds:
        """The outputs in ``facts``, each with the rows of the inputs, which are those in ``facts``.

        level: 0 high, 1 normal, 2 low. deadline_at: by the clock, in seconds. Raises RequestError: 400 naming a tensor
        that the model does not take, 408 past the deadline, 503 with retry_after_s when too much waits, 500 when the
        model fails on it. Cancelling the call takes it out of the queue.
        """
        feeds = check_inputs(self.facts, inputs)
        wanted = [tensor.name for tensor in self.facts.outputs]
        return await self._infer(device, {**feeds, **self.plain_feeds}, wanted, level, deadline_at)

    async def infer_prepared(
        self,
        device: Runner,
        feeds: Mapping[str, NDArray[Any]],
        *,
        outputs: Sequence[str] | None = None,
        level: int = NORMAL,
        deadline_at: float | None = None,
    ) -> Feeds:
        """Some outputs (None: all) of the graph as it runs, for what the adapters made, which is not checked again.

        An input that stays empty has no rows. Otherwise as ``infer``.
        """
        return await self._infer(device, feeds, outputs or self._runnable.outputs, level, deadline_at)

    def allot(self, num_bytes: int) -> None:
        """It keeps no keys and values."""

    def statistics(self) -> dict[str, float]:
        """Requests and rows answered, runs, rows that are inside."""
        return {
            "inferences_total": self.num_inferences,
            "inferred_rows_total": self.num_rows_done,
            "inference_runs_total": self.lane.num_runs,
            "inference_rows_inside": self.num_rows,
            **self.lane.statistics(),
        }

    def close(self) -> None:
        """End its threads; the sessions go with their last reference."""
        self.lane.close()
        self._runnable.close()

    async def _infer(
        self,
        device: Runner,
        feeds: Mapping[str, NDArray[Any]],
        wanted: Sequence[str],
        level: int,
        deadline_at: float | None,
    ) -> Feeds:
        rows = num_rows(feeds) if self.facts.batched else 1
        if self.num_rows >= self.max_rows:
            raise self._full()
        if self.facts.batched:
            items = cut(feeds, rows, self.max_batch, row_size(feeds, self.facts, self._cost))
        else:
            items = [Item(dict(feeds))]
        self.num_rows += rows
        try:
            results = await run_on(device, self.lane, items, level=level, deadline_at=deadline_at, clock=self._clock)
        finally:
            self.num_rows -= rows
        self.num_inferences += 1
        self.num_rows_done += rows
        if len(results) == 1:
            return {name: results[0][name] for name in wanted}
        return {name: np.concatenate([result[name] for result in results]) for name in wanted}

    def _full(self) -> RequestError:
        retry_after_s = max(_SHORTEST_S, self.lane.work_s() / 2)
        message = (
            f"the model {self.name!r} has {self.num_rows} rows waiting (at most {self.max_rows}); try again in"
            f" {math.ceil(retry_after_s)} s"
        )
        return RequestError(Kind.OVERLOADED, message, retry_after_s=retry_after_s)


def batching_of(folder: ModelFolder, settings: ModelSettings) -> BatchingSettings:
    """What the configuration says, else the folder, else the defaults."""
    facts = folder.manifest.batching
    window_s: float | Literal["auto"] | None = "auto" if facts.window == "auto" else facts.window_s
    said = BatchingSettings(facts.max_batch, window_s, facts.policy, facts.cost)
    batching = settings.batching.over(said).over(DEFAULTS)
    return batching if folder.tensors.batched else replace(batching, max_batch=1)
