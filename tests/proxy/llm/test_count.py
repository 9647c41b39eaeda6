"""Counting: o200k as tiktoken has it, any text, pieces that change little."""

from __future__ import annotations

import gzip
import hashlib
from importlib.metadata import distribution

from hypothesis import given
from hypothesis import strategies as st
from tiktoken_ext import openai_public

from proxy.llm.count import _PATTERN, _RANKS, PIECE_CHARACTERS, count_texts, encoder


def test_the_ranks_are_those_that_tiktoken_expects() -> None:
    with gzip.open(str(distribution("bpe-openai").locate_file(_RANKS))) as ranks:
        digest = hashlib.sha256(ranks.read()).hexdigest()
    assert digest in openai_public.o200k_base.__code__.co_consts


def test_text_is_split_as_tiktoken_splits_it() -> None:
    parts = [each for each in openai_public.o200k_base.__code__.co_consts if isinstance(each, tuple | str)]
    known = {text for each in parts for text in (each if isinstance(each, tuple) else (each,))}
    alternatives = [each for each in known if isinstance(each, str) and "\\" in each]
    assert alternatives
    assert all(each in _PATTERN for each in alternatives)


@given(st.text(max_size=200))
def test_no_text_is_too_strange(text: str) -> None:
    assert count_texts([text]) <= len(text.encode("utf-8", "replace"))


def test_pieces_cost_at_most_a_token_for_each_cut() -> None:
    text = "Water turns the wheel, and the wheel turns the stone. " * 1000
    whole = len(encoder().encode_ordinary(text))
    assert whole <= count_texts([text]) <= whole + len(text) // PIECE_CHARACTERS + 1
