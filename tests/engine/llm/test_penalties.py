"""Penalties, bias and what is held back, against their definition over the whole vocabulary."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.llm.penalties import Penalties
from engine.llm.sampling import Sampling
from tests.engine.llm.plain_sampler import FakeRow, changed_logits, log_sum_exp

VOCABULARY = 40
TOKENS = st.integers(0, VOCABULARY - 1)
SAMPLINGS = st.builds(
    Sampling,
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3, 10.0]),
    presence_penalty=st.sampled_from([0.0, -2.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -1.0, 2.0]),
    logit_bias=st.dictionaries(TOKENS, st.floats(-100, 100, width=32), max_size=10),
    min_tokens=st.integers(0, 6),
)


@given(
    seed=st.integers(0, 1 << 20),
    sampling=SAMPLINGS,
    prompt=st.lists(TOKENS, max_size=10),
    answer=st.lists(TOKENS, max_size=10),
    end_ids=st.sets(TOKENS, max_size=4),
)
@settings(max_examples=300, deadline=None)
def test_a_changed_row_is_the_row_of_the_changed_logits(
    seed: int, sampling: Sampling, prompt: list[int], answer: list[int], end_ids: set[int]
) -> None:
    row = FakeRow(np.random.default_rng(seed).normal(0, 3, VOCABULARY).astype(np.float32))
    penalties = Penalties(sampling, prompt, end_ids)
    for token in answer:
        penalties.count(token)
    before = row.all.copy()
    changed = penalties.apply(row)
    expected = changed_logits(row.all, sampling, prompt, answer, sorted(end_ids))
    np.testing.assert_allclose(changed.vocabulary, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(row.all, before)
    whole = changed.vocabulary
    assert abs(changed.logsumexp - log_sum_exp(whole)) < 1e-4
    # The candidates are the best ones, in order, each once.
    assert len(changed.ids)
    np.testing.assert_array_equal(changed.logits, whole[changed.ids])
    np.testing.assert_array_equal(changed.logits, -np.sort(-whole)[: len(changed.ids)])
    assert len(set(changed.ids.tolist())) == len(changed.ids)


def test_what_asks_for_nothing_touches_no_row() -> None:
    row = FakeRow(np.arange(10, dtype=np.float32))
    penalties = Penalties(Sampling(), prompt=[1], end_ids=[2])
    penalties.count(9)
    assert penalties.apply(row) is row
    assert row.num_looks == 0


def test_min_tokens_costs_nothing_once_it_is_reached() -> None:
    row = FakeRow(np.arange(10, dtype=np.float32))
    penalties = Penalties(Sampling(min_tokens=1), prompt=(), end_ids=[9])
    assert penalties.apply(row).ids[0] == 8
    penalties.count(8)
    assert penalties.apply(row) is row
