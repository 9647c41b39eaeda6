"""Rows of ids in, a vector for each out; what is no vector is nobody's."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.adapters.text import TextAdapter
from engine.batching.lane import WrongResult
from engine.embedding_run import EmbeddingRun
from engine.errors import RequestError
from tests.engine.tiny_bert import make_tokenizer

Array = NDArray[np.float32]


class FakeEncoder:
    """A row's vector is (its first id, its length)."""

    dimensions = 2
    width = 1

    def __init__(self, distort: Callable[[Array], object]) -> None:
        self.distort = distort

    def run(self, token_ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> Array:
        return self.distort(np.stack([token_ids[:, 0], lengths], axis=1).astype(np.float32))  # type: ignore[return-value]

    run_beside = run


def embed(distort: Callable[[Array], object], *rows: list[int]) -> list[Array | RequestError]:
    return EmbeddingRun(TextAdapter(make_tokenizer(), max_tokens=40), FakeEncoder(distort)).run(rows)


def test_each_row_has_its_vector() -> None:
    assert np.array(embed(lambda vectors: vectors, [2, 3], [7, 8, 9])).tolist() == [[2, 2], [7, 3]]


@pytest.mark.parametrize(
    "distort",
    [
        lambda vectors: vectors[:-1],
        lambda vectors: np.concatenate([vectors, vectors[:1]]),
        lambda vectors: vectors[:, :1],
        lambda vectors: np.float32(1),
        lambda vectors: vectors.ravel(),
    ],
)
def test_O08_vectors_of_a_wrong_shape_are_nobodys(distort: Callable[[Array], object]) -> None:
    with pytest.raises(WrongResult, match="not \\(3, 2\\)"):
        embed(distort, [1], [2], [3])


def test_a_vector_that_is_not_finite_is_an_error_in_its_place() -> None:
    def spoil(vectors: Array) -> Array:
        vectors[vectors[:, 0] == 7] = np.nan
        return vectors

    first, second, third = embed(spoil, [2], [7], [4])
    assert isinstance(second, RequestError)
    assert "output tensor embedding is not finite" in second.message
    assert np.array([first, third]).tolist() == [[2, 1], [4, 1]]
