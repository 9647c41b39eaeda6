"""Counting: as tiktoken has it, any text, pieces that change little, and models' own tokenizers."""

from __future__ import annotations

import hashlib
import threading
from base64 import b64encode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiktoken_ext import openai_public
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from proxy.held_body import HeldBody
from proxy.llm import count
from proxy.llm.count import PIECE_CHARACTERS, count_prompt, count_texts, count_tools, counter_beside, counters_of
from proxy.llm.encodings import (
    PATTERNS,
    TextCounter,
    counter_by_pieces,
    counter_by_ranks,
    packed_ranks,
    text_counter,
)
from tests.proxy.make import exchange

TIKTOKENS = {"o200k": openai_public.o200k_base, "cl100k": openai_public.cl100k_base}
NAMES = sorted(TIKTOKENS)


@pytest.mark.parametrize("name", NAMES)
def test_the_ranks_are_those_that_tiktoken_expects(name: str) -> None:
    assert hashlib.sha256(packed_ranks(name)).hexdigest() in TIKTOKENS[name].__code__.co_consts


@pytest.mark.parametrize("name", NAMES)
def test_text_is_split_as_tiktoken_splits_it(name: str) -> None:
    parts = [each for each in TIKTOKENS[name].__code__.co_consts if isinstance(each, tuple | str)]
    known = {text for each in parts for text in (each if isinstance(each, tuple) else (each,))}
    alternatives = [each for each in known if isinstance(each, str) and "\\" in each]
    assert alternatives
    assert all(each in PATTERNS[name] for each in alternatives)


@pytest.mark.parametrize("name", NAMES)
@given(text=st.text(max_size=600))
def test_no_text_is_too_strange(name: str, text: str) -> None:
    assert count_texts([text], text_counter(name)) <= len(text.encode("utf-8", "replace"))


@pytest.mark.parametrize("name", NAMES)
def test_pieces_cost_at_most_a_token_for_each_cut(name: str) -> None:
    text = "Water turns the wheel, and the wheel turns the stone. " * 1000
    whole = len(text_counter(name).encode(text))
    assert whole <= count_texts([text], text_counter(name)) <= whole + len(text) // PIECE_CHARACTERS + 1


def test_L13_what_looks_like_a_control_token_is_counted_as_it_is_spelt() -> None:
    for name in NAMES:
        assert count_texts(["explain <|endoftext|> and <|fim_prefix|> please"], text_counter(name)) > 10


def test_what_was_counted_before_is_not_counted_again() -> None:
    counter = text_counter("o200k")
    asked = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return list(counter.encode(text))

    watched = TextCounter("watched", encode)
    texts = ["The wheel turns. " * 40, "The stone turns. " * 40]
    first = count_texts(texts, watched)
    assert count_texts([*texts, "new"], watched) == first + 1
    assert [len(text) for text in asked] == [680, 680, 3]
    assert count_texts(texts, TextCounter("other", encode)) == first
    assert len(asked) == 5  # another tokenizer's counts are its own


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count, "_MAX_REMEMBERED", 3)
    monkeypatch.setattr(count, "_known", {})
    for n in range(10):
        count_texts([f"{n} " * 200])
        assert len(count._known) <= 3


def test_an_encoder_that_panics_counts_bytes() -> None:
    class Panic(BaseException):
        pass

    def encode(text: str) -> list[int]:
        raise Panic

    assert count_texts(["w\u00e4rme"], TextCounter("broken", encode)) == 6


def test_a_models_own_ranks_count_for_it_alone() -> None:
    tokens = [b"the", b" the", *(bytes([value]) for value in b"abcdefghijklmnopqrstuvwxyz ")]
    lines = b"\n".join(b"%b %d" % (b64encode(token), rank) for rank, token in enumerate(tokens))
    own = counter_by_ranks("small", lines, r" ?\p{L}+|\s+|[^\s\p{L}]+")
    counter_of = counters_of({"small": own}, counter_beside(None))
    assert counter_of("small").own
    assert count_texts(["the the the"], counter_of("small")) == 3
    assert count_texts(["the \U0001f525"], counter_of("small")) == 2 + 4  # bytes that it has no token for
    assert counter_of("gpt-4o") is text_counter("o200k")
    assert counters_of({}, text_counter("cl100k"))("x") is text_counter("cl100k")


def test_composed_text_is_counted_composed() -> None:
    lines = b"%b 0" % b64encode("\u00e9".encode())
    counted = [counter_by_ranks("m", lines, r"\p{L}+|.", nfc=nfc).encode("e\u0301") for nfc in (True, False)]
    assert [len(each) for each in counted] == [1, 3]


def test_a_models_own_pieces_count_without_its_control_tokens() -> None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "wheel": 1, "stone": 2}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(["[CLS]"])
    counter = counter_by_pieces("words", tokenizer.to_str().encode())
    assert count_texts(["wheel stone wheel"], counter) == 3
    assert count_texts(["[CLS]"], counter) == 3  # a word among brackets
    for broken in (b"{", orjson.dumps({"model": {}})):
        with pytest.raises(ValueError, match=r"."):
            counter_by_pieces("broken", broken)


@pytest.mark.parametrize(
    "document",
    [
        {"messages": [{"role": "user", "content": ""}] * 5000},
        {"messages": [{"role": "user", "content": "hi"}], "tools": [{"name": str(i)} for i in range(5000)]},
    ],
)
async def test_what_takes_long_is_counted_in_a_thread_however_little_text_it_has(document: dict[str, Any]) -> None:
    seen: set[threading.Thread] = set()

    def encode(text: str) -> list[int]:
        seen.add(threading.current_thread())
        return []

    counter = TextCounter("none", encode)
    x = exchange("/v1/chat/completions", method="POST")
    x.body = HeldBody.made(x, orjson.dumps(document), document)
    await count_prompt(x, lambda _model: counter)
    assert x.body.llm is not None
    await count_tools(x.body.llm, counter)
    assert seen
    assert threading.main_thread() not in seen
