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


class Encodes(Protocol):
    """A loaded model: engine/encoder.py, or a fake in tests."""

    dimensions: int

    def run(self, token_ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """float32[rows, dimensions] for int32[rows, tokens] and int32[rows]."""
        ...


class EmbeddingRun:
    """Pads, runs and judges."""

    def __init__(self, adapter: TextAdapter, encoder: Encodes) -> None:
        self.adapter = adapter
        self.encoder = encoder

    def run(self, payloads: Sequence[Sequence[int]]) -> list[NDArray[np.float32] | RequestError]:
        """float32[dimensions] for each row of ids. Raises WrongResult."""
        vectors = self.encoder.run(*self.adapter.pad(payloads))
        expected = (len(payloads), self.encoder.dimensions)
        if np.shape(vectors) != expected:
            raise WrongResult(f"the run gave a result of shape {np.shape(vectors)}, not {expected}")
        if np.isfinite(vectors).all():
            return list(vectors)
        return [vector if np.isfinite(vector).all() else _not_finite() for vector in vectors]


def _not_finite() -> RequestError:
    return RequestError(Kind.FAILED, "the model's output tensor embedding is not finite for it")
