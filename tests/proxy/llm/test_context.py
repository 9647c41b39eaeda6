"""The arithmetic of contexts: what fits, to the token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.llm.context import Need, answer_tokens, too_long, with_margin


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "reserve", "fits"),
    [
        (2047, None, 0.0, True),  # a
        (2048, None, 0.0, False),  # b
        (2049, None, 0.0, False),  # c
        (1000, 1048, 0.0, True),  # d
        (1000, 1049, 0.0, False),  # e: refused, not clamped, where the route has a guard
        (1000, None, 0.0, True),  # f
        (1740, None, 0.15, True),  # 2048 less 308
        (1741, None, 0.15, False),
        (1000, 1048, 0.15, True),  # what is named counts, not the reserve
        (1000, 1049, 0.15, False),
        (2047, 0, 0.15, True),  # an answer has at least one token
        (2048, 0, 0.15, False),
    ],
)
def test_L16_prompt_and_answer_against_the_context(
    prompt: int, max_tokens: int | None, reserve: float, fits: bool
) -> None:
    assert Need(prompt, *answer_tokens(2048, max_tokens, reserve)).fits(2048) is fits


@given(st.integers(1, 10**6), st.none() | st.integers(-5, 10**7), st.floats(0.0, 1.0))
def test_an_answer_has_at_least_one_token(context: int, max_tokens: int | None, reserve: float) -> None:
    tokens, reserved = answer_tokens(context, max_tokens, reserve)
    assert tokens >= 1
    assert reserved is (max_tokens is None)
    assert not Need(context, tokens, reserved).fits(context)


@given(st.integers(0, 10**7), st.floats(0.0, 1.0))
def test_a_margin_never_makes_it_less(tokens: int, margin: float) -> None:
    assert with_margin(tokens, margin) >= tokens


@pytest.mark.parametrize(
    ("need", "exact", "words"),
    [
        (Need(2049, 308, True), True, "the prompt has 2049, which leaves no token for an answer. Shorten the prompt."),
        (Need(1800, 308, True), False, "the prompt has about 1800, which leaves 248 for an answer, for which 308 are"),
        (Need(1000, 1049, False), True, "leaves 1048 for an answer, of which max_tokens asks 1049. Shorten"),
        (Need(1000, 2048, False), True, "leaves 1048 for an answer, of which max_tokens asks 2048. Lower max_tokens."),
        (Need(2048, 2048, False), True, "leaves no token for an answer. Shorten the prompt and lower max_tokens."),
    ],
)
def test_the_refusal_has_the_numbers(need: Need, exact: bool, words: str) -> None:
    said = too_long(need, 2048, exact=exact)
    assert said.startswith("This model's context is 2048 tokens; ")
    assert words in said
