"""The sampler against a plain reference distribution, exactly: by the uniform number at which each token begins."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.llm.sampler import BadLogitsError, Sampler, Sampling

K = 8


@dataclass
class FakeRow:
    """The row that a graph would give for these logits; counts how often all of them were taken."""

    all: NDArray[np.float32]
    num_whole: int = 0
    ids: NDArray[np.int64] = field(init=False)
    logits: NDArray[np.float32] = field(init=False)
    logsumexp: float = field(init=False)

    def __post_init__(self) -> None:
        self.ids = np.argsort(-self.all, kind="stable")[:K]
        self.logits = self.all[self.ids]
        wide = self.all.astype(np.float64)
        top = wide.max()
        self.logsumexp = float(np.float32(top + np.log(np.exp(wide - top).sum()))) if np.isfinite(top) else float(top)

    def whole(self) -> NDArray[np.float32]:
        self.num_whole += 1
        return self.all.copy()


def reference(logits: NDArray[np.float32], sampling: Sampling) -> NDArray[np.float64]:
    """The probabilities that temperature, top_k and top_p leave, by definition."""
    scaled = logits.astype(np.float64) / sampling.temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-logits, kind="stable")
    if sampling.top_k:
        weights[order[sampling.top_k :]] = 0
    weights /= weights.sum()
    if sampling.top_p < 1:
        sums = np.cumsum(weights[order])
        weights[order[int(np.searchsorted(sums, sampling.top_p)) + 1 :]] = 0
        weights /= weights.sum()
    return weights


def frequencies(row: FakeRow, sampling: Sampling, count: int) -> NDArray[np.float64]:
    """How often each token is chosen over ``count`` evenly spread uniform numbers."""
    points = iter((np.arange(count) + 0.5) / count)
    sampler = Sampler(sampling, lambda: float(next(points)))
    chosen = [sampler.pick(row).token for _ in range(count)]
    return np.bincount(chosen, minlength=len(row.all)) / count


@pytest.mark.parametrize("top_k", [0, 3, 20])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_reference_distribution(temperature: float, top_k: int, top_p: float) -> None:
    logits = np.random.default_rng(7).normal(0, 2.5, 60).astype(np.float32)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    found = frequencies(FakeRow(logits), sampling, 4000)
    assert np.abs(found - reference(logits, sampling)).max() < 1e-3  # evenly spread points miss by at most 1/count


@given(
    seed=st.integers(0, 1 << 20),
    temperature=st.floats(0.1, 2),
    top_k=st.integers(0, 30),
    top_p=st.floats(0.05, 1),
    point=st.floats(0, 0.999999),
)
def test_the_candidates_settle_nothing_that_the_whole_row_would_not(
    seed: int, temperature: float, top_k: int, top_p: float, point: float
) -> None:
    logits = np.random.default_rng(seed).normal(0, 2, 40).astype(np.float32)
    few = FakeRow(logits)
    every = FakeRow(logits)
    every.ids = np.argsort(-logits, kind="stable")
    every.logits = logits[every.ids]
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    # A point at the very edge between two tokens may fall to either side by rounding alone.
    weights = reference(logits, sampling)
    edges = np.cumsum(weights[every.ids])
    if np.abs(edges - point).min() < 1e-4:
        return
    if few.num_whole == 0 or top_p < 1 or top_k:
        assert Sampler(sampling, lambda: point).pick(few).token in np.flatnonzero(weights)
    assert Sampler(sampling, lambda: point).pick(every).token in np.flatnonzero(weights)


def test_a_peaked_row_never_needs_the_whole_vocabulary() -> None:
    logits = np.linspace(0, -150, 50).astype(np.float32)
    row = FakeRow(logits)
    for temperature in (0.3, 0.8, 1.0):
        frequencies(row, Sampling(temperature=temperature), 500)
    assert row.num_whole == 0


def test_a_flat_row_needs_the_whole_vocabulary_for_what_lies_beyond_the_candidates() -> None:
    row = FakeRow(np.zeros(80, np.float32))
    assert (frequencies(row, Sampling(), 800) == 1 / 80).all()
    assert row.num_whole == 720


@pytest.mark.parametrize("temperature", [0.0, 1e-10])
def test_L19_temperature_zero_and_tiny_is_argmax(temperature: float) -> None:
    def never() -> float:
        raise AssertionError("greedy draws nothing")

    row = FakeRow(np.array([1, 5, 5, 2] + [0] * 10, np.float32))
    assert Sampler(Sampling(temperature=temperature), never).pick(row).token == 1


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_L19_a_row_without_a_distribution_is_an_error(value: float) -> None:
    with np.errstate(invalid="ignore"):
        row = FakeRow(np.full(20, value, np.float32))
    with pytest.raises(BadLogitsError):
        Sampler(Sampling(), lambda: 0.5).pick(row)


def test_the_same_seed_gives_the_same_tokens() -> None:
    row = FakeRow(np.random.default_rng(1).normal(0, 2, 100).astype(np.float32))
    texts = []
    for seed in (5, 5, 6):
        sampler = Sampler(Sampling(), np.random.default_rng(seed).random)
        texts.append([sampler.pick(row).token for _ in range(50)])
    assert texts[0] == texts[1] != texts[2]
