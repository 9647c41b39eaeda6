"""How far an embedding model strays from its source in float32, on some texts: cosines, and whose neighbours stay.

Knows neither files nor the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.adapters.text import TextAdapter
from engine.embedding_run import Encodes


class EmbeddingQuality(NamedTuple):
    """Of the vectors of each text, the model's beside the source's."""

    texts: int
    cosine_mean: float
    cosine_least: float
    least_like: int  # whose vectors that is, counted from 0
    same_nearest: float  # share of texts to which the same other text is nearest by both


def measure(model: Encodes, source: Encodes, adapter: TextAdapter, rows: Sequence[Sequence[int]]) -> EmbeddingQuality:
    """Compare both on texts as rows of ids, at least two."""
    vectors, expected = (
        np.concatenate([encoder.run(*adapter.pad([row])) for row in rows]) for encoder in (model, source)
    )
    return compare(vectors, expected)


def compare(vectors: NDArray[np.float32], expected: NDArray[np.float32]) -> EmbeddingQuality:
    """Of vectors of length 1, [texts, dimensions] each."""
    cosines = (vectors.astype(np.float64) * expected).sum(axis=1)
    nearest = [_nearest(each) for each in (vectors, expected)]
    return EmbeddingQuality(
        len(cosines),
        float(cosines.mean()),
        float(cosines.min()),
        int(cosines.argmin()),
        float((nearest[0] == nearest[1]).mean()),
    )


def _nearest(vectors: NDArray[np.float32]) -> NDArray[np.intp]:
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -2)
    nearest: NDArray[np.intp] = likeness.argmax(axis=1)
    return nearest
