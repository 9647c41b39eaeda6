"""Texts and token ids: whole or refused, special tokens never from user text, true lengths."""

import numpy as np
import pytest

from engine.adapters.text import TextAdapter
from engine.errors import Kind, RequestError
from tests.engine.tiny_bert import WORDS, make_tokenizer


@pytest.fixture
def adapter() -> TextAdapter:
    return TextAdapter(make_tokenizer(), max_tokens=12)


def test_text_is_framed_and_neither_cut_nor_padded(adapter: TextAdapter) -> None:
    assert adapter.encode("Hello") == [2, 11, 3]
    assert len(adapter.encode("a b " * 5)) == 12  # the tokenizer's own file says: cut and pad to 8


def test_M04_too_long_is_422_naming_the_place(adapter: TextAdapter) -> None:
    with pytest.raises(RequestError, match=r"input\[4\] has 13 tokens, of which at most 12") as caught:
        adapter.encode("a " * 11, "input[4]")
    assert caught.value.kind is Kind.CONTEXT_LENGTH
    assert caught.value.kind.status == 422


def test_M04_far_too_long_is_refused_before_encoding(adapter: TextAdapter) -> None:
    with pytest.raises(
        RequestError, match="has 1201 characters; a text for this model may have at most 1200"
    ) as caught:
        adapter.encode(" " * 1201)
    assert caught.value.kind is Kind.CONTEXT_LENGTH


def test_M04_empty_is_400_and_blank_is_a_text(adapter: TextAdapter) -> None:
    with pytest.raises(RequestError, match=r"input\[1\] is an empty string") as caught:
        adapter.encode("", "input[1]")
    assert (caught.value.kind, caught.value.param) == (Kind.INVALID, "input")
    assert adapter.encode(" ") == [2, 3]
    assert adapter.encode("\0") == [2, 3]


def test_L13_text_that_spells_special_tokens_is_text(adapter: TextAdapter) -> None:
    ids = adapter.encode("a [SEP] [MASK] b")
    assert ids == [2, *(WORDS.index(word) for word in ("a", "[", "sep", "]", "[", "mask", "]", "b")), 3]


def test_lone_surrogate_is_400(adapter: TextAdapter) -> None:
    with pytest.raises(RequestError, match="lone surrogate") as caught:
        adapter.encode("a\ud800")
    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([7, 8], [2, 7, 8, 3]),
        ([2, 7, 8, 3], [2, 7, 8, 3]),
        ([2, 3], [2, 3]),
        ([2], [2, 2, 3]),
        ([2, 7], [2, 2, 7, 3]),
        ([14], [2, 14, 3]),
    ],
)
def test_M02_ids_get_the_frame_that_they_lack(adapter: TextAdapter, ids: list[int], expected: list[int]) -> None:
    assert adapter.encode(ids) == expected


@pytest.mark.parametrize("ids", [[15], [7, -1], [10**9], [7, 10**40]])
def test_M02_ids_outside_the_vocabulary_are_400(adapter: TextAdapter, ids: list[int]) -> None:
    with pytest.raises(RequestError, match=f"token {ids[-1]}, outside this model's vocabulary of 15") as caught:
        adapter.encode(ids)
    assert (caught.value.kind, caught.value.param) == (Kind.INVALID, "input")


def test_M02_no_ids_are_400_and_too_many_are_422(adapter: TextAdapter) -> None:
    with pytest.raises(RequestError, match="empty array") as caught:
        adapter.encode([])
    assert caught.value.kind is Kind.INVALID
    with pytest.raises(RequestError, match="13 tokens") as caught:
        adapter.encode([7] * 11)
    assert caught.value.kind is Kind.CONTEXT_LENGTH


def test_padding_is_on_the_right_with_true_lengths(adapter: TextAdapter) -> None:
    token_ids, lengths = adapter.pad([[2, 3], [2, 7, 8, 3]])
    assert token_ids.dtype == lengths.dtype == np.int32
    assert token_ids.tolist() == [[2, 3, 0, 0], [2, 7, 8, 3]]
    assert lengths.tolist() == [2, 4]


def test_a_tokenizer_without_frame_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.post_processor = None
    with pytest.raises(ValueError, match="one token before a text and one behind"):
        TextAdapter(tokenizer, max_tokens=12)
