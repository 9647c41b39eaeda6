"""A graph as the batching lane calls it: the tensors of many requests in, to each what came out of its rows.

The only file of the tensor models that knows ONNX Runtime. Knows nothing of requests; the device's thread drives it, or
several whose runs go on beside each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.batching.lane import WrongResult
from engine.tensors.shares import shares

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Feeds = dict[str, NDArray[Any]]
Part = tuple[Feeds, list[int]]  # what one instance is given, and where in it the rows of each payload end


class GraphRunnable:
    """One graph, in as many sessions as it has instances; each of them runs a share of a batch at the same time."""

    def __init__(self, instances: Sequence[InferenceSession], *, batched: bool) -> None:
        self.inputs = [tensor.name for tensor in instances[0].get_inputs()]
        self.outputs = [tensor.name for tensor in instances[0].get_outputs()]
        self.num_instances = len(instances)
        self.width = 1  # runs that may go on beside each other
        self._instances = instances
        self._batched = batched
        self._strings = {tensor.name for tensor in instances[0].get_outputs() if tensor.type == "tensor(string)"}
        self._others = ThreadPoolExecutor(max(1, len(instances) - 1), "instance")  # starts threads as they are needed

    def run(self, payloads: Sequence[Feeds]) -> list[Feeds]:
        """The outputs of each payload, in their order: views of what the whole batch gave.

        Payloads have the same inputs, of equal shapes but for the first axis. Raises WrongResult when an output has
        not one row for each row that went in, and whatever the graph raises.
        """
        return self.run_gathered(self.gather(payloads))

    def gather(self, payloads: Sequence[Feeds]) -> list[Part]:
        """The arrays of a run, by instance; of a payload that is alone its own. Any thread."""
        if not self._batched:
            return [(payload, []) for payload in payloads]
        return [_join(payloads[part]) for part in shares([_rows(each) for each in payloads], len(self._instances))]

    def run_gathered(self, parts: Sequence[Part]) -> list[Feeds]:
        """As ``run``."""
        if not self._batched:
            return [self._run(self._instances[0], feeds) for feeds, _ in parts]
        later = [
            self._others.submit(self._run_part, session, part)
            for session, part in zip(self._instances[1:], parts[1:], strict=False)
        ]
        try:
            results = self._run_part(self._instances[0], parts[0])
        finally:
            for future in later:
                future.exception()  # no share may still run when this returns
        for future in later:
            results += future.result()
        return results

    def run_beside(self, payloads: Sequence[Feeds]) -> list[Feeds]:
        """As ``run``, on any thread: runs at the same time share the threads of one session, and the weights."""
        return self.run(payloads)

    def close(self) -> None:
        """End the threads of the instances."""
        self._others.shutdown()

    def _run_part(self, session: InferenceSession, part: Part) -> list[Feeds]:
        feeds, ends = part
        outputs = self._run(session, feeds)
        for name, array in outputs.items():
            if array.shape[:1] != (ends[-1],):
                raise WrongResult(f"the output {name!r} has the shape {list(array.shape)} for {ends[-1]} rows")
        if len(ends) == 1:
            return [outputs]
        return [
            {name: array[begin:end] for name, array in outputs.items()}
            for begin, end in zip([0, *ends[:-1]], ends, strict=True)
        ]

    def _run(self, session: InferenceSession, feeds: Feeds) -> Feeds:
        arrays = dict(zip(self.outputs, session.run(self.outputs, feeds), strict=True))
        for name in self._strings:
            arrays[name] = _bytes(arrays[name])
        return arrays


def _join(payloads: Sequence[Feeds]) -> Part:
    ends = list(accumulate(map(_rows, payloads)))
    if len(payloads) == 1:
        return payloads[0], ends
    return {name: np.concatenate([each[name] for each in payloads]) for name in payloads[0]}, ends


def _rows(payload: Feeds) -> int:
    return max(len(array) for array in payload.values())


def _bytes(texts: NDArray[Any]) -> NDArray[Any]:
    elements = np.empty(texts.size, object)
    for index, text in enumerate(texts.flat):
        elements[index] = text.encode()
    return elements.reshape(texts.shape)
