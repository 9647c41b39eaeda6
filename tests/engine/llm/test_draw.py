"""Draws against the distribution by definition, exactly: by the uniform number at which each token begins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.llm.draw import draw
from engine.llm.sampling import Sampling
from tests.engine.llm.plain_sampler import FakeRow, probabilities

SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0.1, 2),
    top_k=st.integers(0, 30),
    top_p=st.floats(0.05, 1),
    min_p=st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
)


def frequencies(row: FakeRow, sampling: Sampling, count: int) -> NDArray[np.float64]:
    """How often each token is drawn over ``count`` evenly spread uniform numbers."""
    drawn = [draw(row, sampling, (at + 0.5) / count) for at in range(count)]
    return np.bincount(drawn, minlength=len(row.all)) / count


@pytest.mark.parametrize("min_p", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("top_k", [0, 3, 20])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_distribution(temperature: float, top_p: float, top_k: int, min_p: float) -> None:
    logits = np.random.default_rng(7).normal(0, 2.5, 60).astype(np.float32)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    found = frequencies(FakeRow(logits), sampling, 2000)
    assert np.abs(found - probabilities(logits, sampling)).max() < 2e-3  # evenly spread points miss by at most 2/count


@given(seed=st.integers(0, 1 << 20), sampling=SAMPLINGS)
@settings(max_examples=30, deadline=None)
def test_any_combination_follows_the_distribution(seed: int, sampling: Sampling) -> None:
    logits = np.random.default_rng(seed).normal(0, 2, 40).astype(np.float32)
    found = frequencies(FakeRow(logits), sampling, 400)
    assert np.abs(found - probabilities(logits, sampling)).max() < 6e-3


@given(seed=st.integers(0, 1 << 20), sampling=SAMPLINGS, point=st.floats(0, 0.999999))
def test_what_the_candidates_settle_the_whole_row_settles_alike(seed: int, sampling: Sampling, point: float) -> None:
    logits = np.random.default_rng(seed).normal(0, 2, 40).astype(np.float32)
    few, every = FakeRow(logits), FakeRow(logits, num_candidates=40)
    edges = np.cumsum(probabilities(logits, sampling)[every.ids])
    if np.abs(edges - point).min() < 1e-4:  # at the very edge between two tokens rounding alone decides
        return
    drawn = draw(few, sampling, point)
    if few.num_looks == 0:
        assert drawn == draw(every, sampling, point)


def test_a_peaked_row_never_needs_the_whole_vocabulary() -> None:
    row = FakeRow(np.linspace(0, -150, 50).astype(np.float32))
    for temperature in (0.3, 0.8, 1.0):
        frequencies(row, Sampling(temperature=temperature), 500)
    assert row.num_looks == 0


def test_min_p_never_needs_the_whole_vocabulary_when_the_last_candidate_is_less_likely() -> None:
    row = FakeRow(np.linspace(0, -2, 50).astype(np.float32))
    frequencies(row, Sampling(temperature=2.0, min_p=0.9), 100)
    assert row.num_looks == 0


def test_a_flat_row_needs_the_whole_vocabulary_for_what_lies_beyond_the_candidates() -> None:
    row = FakeRow(np.zeros(80, np.float32))
    assert (frequencies(row, Sampling(), 800) == 1 / 80).all()
    assert row.num_looks == 720
