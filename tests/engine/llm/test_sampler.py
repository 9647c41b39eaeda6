"""One sequence's choices: greedy, seeded, penalised, with log probabilities; and rows that hold no distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.llm.sampler import BadLogitsError, Sampler
from engine.llm.sampling import Choice, Sampling
from tests.engine.llm.plain_sampler import FakeRow, changed_logits, probabilities


def never() -> float:
    raise AssertionError("greedy draws nothing")


@pytest.mark.parametrize("temperature", [0.0, 1e-10])
def test_L19_temperature_zero_and_tiny_is_argmax(temperature: float) -> None:
    row = FakeRow(np.array([1, 5, 5, 2] + [0] * 10, np.float32))
    assert Sampler(Sampling(temperature=temperature), never).pick(row) == Choice(1)


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
@pytest.mark.parametrize("bias", [{}, {3: -1.0}])
def test_L19_a_row_without_a_distribution_is_an_error(value: float, bias: dict[int, float]) -> None:
    with np.errstate(invalid="ignore"):
        row = FakeRow(np.full(20, value, np.float32))
    with pytest.raises(BadLogitsError):
        Sampler(Sampling(logit_bias=bias), lambda: 0.5).pick(row)


def test_the_same_seed_gives_the_same_tokens() -> None:
    row = FakeRow(np.random.default_rng(1).normal(0, 2, 100).astype(np.float32))
    texts = []
    for seed in (5, 5, 6):
        sampler = Sampler(Sampling(frequency_penalty=0.5), np.random.default_rng(seed).random)
        texts.append([sampler.pick(row).token for _ in range(50)])
    assert texts[0] == texts[1] != texts[2]


TOKENS = st.integers(0, 29)


@given(
    seed=st.integers(0, 1 << 20),
    sampling=st.builds(
        Sampling,
        temperature=st.floats(0.2, 2),
        top_k=st.sampled_from([0, 3, 12]),
        top_p=st.sampled_from([1.0, 0.9, 0.4]),
        min_p=st.sampled_from([0.0, 0.05]),
        repetition_penalty=st.sampled_from([1.0, 1.5]),
        presence_penalty=st.sampled_from([0.0, 1.0]),
        frequency_penalty=st.sampled_from([0.0, 0.7]),
        logit_bias=st.dictionaries(TOKENS, st.floats(-5, 5, width=32), max_size=4),
        min_tokens=st.integers(0, 4),
    ),
    prompt=st.lists(TOKENS, max_size=5),
    answer=st.lists(TOKENS, max_size=5),
)
@settings(max_examples=15, deadline=None)
def test_after_any_history_a_choice_follows_the_plain_sampler(
    seed: int, sampling: Sampling, prompt: list[int], answer: list[int]
) -> None:
    logits = np.random.default_rng(seed).normal(0, 2, 30).astype(np.float32)
    end_ids = sorted({0, 1} - set(answer))
    count = 100
    found = np.zeros(30)
    for at in range(count):
        sampler = Sampler(sampling, lambda point=(at + 0.5) / count: point, prompt=prompt, end_ids=end_ids)
        for token in answer:
            certain = np.zeros(30, np.float32)
            certain[token] = 1e4
            assert sampler.pick(FakeRow(certain)).token == token
        found[sampler.pick(FakeRow(logits)).token] += 1 / count
    expected = probabilities(changed_logits(logits, sampling, prompt, answer, end_ids), sampling)
    assert np.abs(found - expected).max() < 2.5 / count  # evenly spread points miss by at most 2/count


def test_each_choice_counts_against_the_next() -> None:
    sampling = Sampling(temperature=0, repetition_penalty=1.1, presence_penalty=0.3, frequency_penalty=0.2)
    logits = np.random.default_rng(2).normal(1, 1, 30).astype(np.float32)
    sampler = Sampler(sampling, never, prompt=[3, 4])
    answer: list[int] = []
    for _ in range(40):
        best = int(np.argmax(changed_logits(logits, sampling, [3, 4], answer, [])))
        assert sampler.pick(FakeRow(logits)).token == best
        answer.append(best)
    assert len(set(answer)) > 5


def test_an_answer_does_not_end_before_min_tokens() -> None:
    sampler = Sampler(Sampling(temperature=0, min_tokens=2), never, end_ids=[7, 8])
    row = FakeRow(np.array([0, 1, 2, 3, 4, 5, 6, 9, 8, 0], np.float32))
    assert [sampler.pick(row).token for _ in range(3)] == [6, 6, 7]


def test_log_probabilities_are_the_models_own_whatever_was_changed() -> None:
    logits = np.random.default_rng(3).normal(0, 3, 30).astype(np.float32)
    row = FakeRow(logits)
    true = logits.astype(np.float64) - row.logsumexp
    unlikely = int(np.argmin(logits))
    sampling = Sampling(temperature=0.5, logit_bias={unlikely: 100.0}, logprobs=3)
    choice = Sampler(sampling, lambda: 0.5).pick(row)
    assert choice.token == unlikely
    assert choice.logprob == pytest.approx(true[unlikely])
    assert [token for token, _ in choice.top] == row.ids[:3].tolist()
    assert [logprob for _, logprob in choice.top] == pytest.approx(true[row.ids[:3]])
    assert Sampler(Sampling(logprobs=0), lambda: 0.5).pick(row).top == ()
    assert sum(math.exp(logprob) for _, logprob in Sampler(Sampling(logprobs=20), lambda: 0.5).pick(row).top) <= 1
