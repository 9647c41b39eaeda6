"""Texts as rows of ids: padded to the next bucket, masked, whole or refused."""

from typing import Any

import numpy as np
import pytest

from engine.adapters.tokens import TokenAdapter
from engine.adapters.whole_text import WholeText
from engine.errors import Kind, RequestError
from engine.tensor_facts import TextFacts
from tests.engine.tiny_bert import make_tokenizer


def adapter(**facts: Any) -> TokenAdapter:
    whole = TextFacts(**{"ids": "ids", "mask": "mask", "types": "types", "max_tokens": 12, "pad_id": 1, **facts})
    dtypes = {"ids": np.int64, "mask": np.int32, "types": np.int64}
    return TokenAdapter(whole, WholeText(make_tokenizer(), max_tokens=whole.max_tokens), dtypes)


def test_ids_mask_and_types_of_the_next_bucket() -> None:
    feeds = adapter(buckets=(4, 8, 12)).prepare("a b c", "input")
    assert {name: array.dtype for name, array in feeds.items()} == {
        "ids": np.dtype(np.int64),
        "mask": np.dtype(np.int32),
        "types": np.dtype(np.int64),
    }
    assert feeds["ids"].shape == (1, 8)
    assert (feeds["ids"][0, 5:] == 1).all()
    np.testing.assert_array_equal(feeds["mask"], [[1, 1, 1, 1, 1, 0, 0, 0]])
    assert not feeds["types"].any()


@pytest.mark.parametrize(("words", "length"), [(1, 4), (2, 4), (3, 8), (6, 8), (7, 12), (10, 12)])
def test_the_smallest_bucket_that_holds_a_text(words: int, length: int) -> None:
    assert adapter(buckets=(4, 8, 12)).prepare("a " * words, "input")["ids"].shape == (1, length)


def test_without_buckets_every_text_is_as_long_as_the_longest() -> None:
    feeds = adapter(mask=None, types=None).prepare("a", "input")
    assert {name: array.shape for name, array in feeds.items()} == {"ids": (1, 12)}


def test_bytes_are_utf_8() -> None:
    one, other = (adapter().prepare(raw, "input")["ids"] for raw in ("a b", b"a b"))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("raw", "kind", "message"),
    [
        ("", Kind.INVALID, "is an empty string"),
        (b"", Kind.INVALID, "is an empty string"),
        (b"a\xff", Kind.INVALID, "is not UTF-8 at byte 1"),
        ("\ud800", Kind.INVALID, "contains a lone surrogate"),
        ("a " * 11, Kind.CONTEXT_LENGTH, "has 13 tokens, of which at most 12"),
        ("a" * 1201, Kind.CONTEXT_LENGTH, "has 1201 characters"),
    ],
)
def test_what_is_no_text_for_the_model(raw: bytes | str, kind: Kind, message: str) -> None:
    with pytest.raises(RequestError, match=rf"^input\[2\] {message}") as caught:
        adapter().prepare(raw, "input[2]")
    assert caught.value.kind is kind
