"""A batch of an embedding model's texts as one run: rows of ids in, a vector for each out.

A Runnable (engine/batching/lane.py). Owns which of the encoder's answers are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.adapters.text import TextAdapter
from engine.batching.lane import WrongResult
from engine.errors import Kind, RequestError

Padded = tuple[NDArray[np.int32], NDArray[np.int32]]  # token ids, lengths


class Encodes(Protocol):
    """A loaded model: engine/encoder.py, or a fake in tests."""

    dimensions: int
    width: int  # runs that may go on beside each other

    def run(self, token_ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """float32[rows, dimensions] for int32[rows, tokens] and int32[rows]."""
        ...

    def run_beside(self, token_ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """The same with a share of the cores, on any thread."""
        ...


class EmbeddingRun:
    """Pads, runs and judges."""

    def __init__(self, adapter: TextAdapter, encoder: Encodes) -> None:
        self.adapter = adapter
        self.encoder = encoder
        self.width = encoder.width

    def run(self, payloads: Sequence[Sequence[int]]) -> list[NDArray[np.float32] | RequestError]:
        """float32[dimensions] for each row of ids. Raises WrongResult."""
        return self.run_gathered(self.gather(payloads))

    def gather(self, payloads: Sequence[Sequence[int]]) -> Padded:
        """What the encoder is given for these rows."""
        return self.adapter.pad(payloads)

    def run_gathered(self, gathered: Padded) -> list[NDArray[np.float32] | RequestError]:
        """As ``run``."""
        return self._judge(self.encoder.run(*gathered), len(gathered[1]))

    def run_beside(self, payloads: Sequence[Sequence[int]]) -> list[NDArray[np.float32] | RequestError]:
        """As ``run``, with a share of the cores; on any thread."""
        return self._judge(self.encoder.run_beside(*self.adapter.pad(payloads)), len(payloads))

    def _judge(self, vectors: NDArray[np.float32], num_rows: int) -> list[NDArray[np.float32] | RequestError]:
        expected = (num_rows, self.encoder.dimensions)
        if np.shape(vectors) != expected:
            raise WrongResult(f"the run gave a result of shape {np.shape(vectors)}, not {expected}")
        if np.isfinite(vectors).all():
            return list(vectors)
        return [vector if np.isfinite(vector).all() else _not_finite() for vector in vectors]


def _not_finite() -> RequestError:
    return RequestError(Kind.FAILED, "the model's output tensor embedding is not finite for it")
