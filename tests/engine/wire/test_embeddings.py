"""/v1/embeddings bodies: what is taken, what is refused and under which name, and the answer's exact numbers."""

import base64
from typing import Any

import numpy as np
import orjson
import pytest

from engine.errors import Kind, RequestError
from engine.wire.embeddings import MAX_TEXTS, parse, render, shorten


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("x", ["x"]),
        (["x"], ["x"]),
        (["a", "b"], ["a", "b"]),
        ([100, 201, 301], [[100, 201, 301]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([-1], [[-1]]),  # a question of the vocabulary: the adapter refuses it
        ([[]], [[]]),
        (["x"] * MAX_TEXTS, ["x"] * MAX_TEXTS),
        (list(range(MAX_TEXTS + 1)), [list(range(MAX_TEXTS + 1))]),
    ],
)
def test_M02_input_is_always_a_list_of_texts(value: object, texts: object) -> None:
    assert parse({"model": "m", "input": value}, 4).texts == texts


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        True,
        {},
        [],
        ["a", [1]],
        [1.5],
        [True],
        ["a", 1],
        [None],
        [{}],
        [["a"]],
        [[[1]]],
        [[1], 2],
        [[True]],
        [[1.0]],
    ],
)
def test_M02_other_input_is_400(value: object) -> None:
    with pytest.raises(RequestError) as caught:
        parse({"model": "m", "input": value}, 4)
    assert (caught.value.kind, caught.value.param) == (Kind.INVALID, "input")


def test_M04_too_many_items_are_400() -> None:
    with pytest.raises(RequestError, match="2049 items; at most 2048"):
        parse({"input": ["x"] * 2049}, 4)


@pytest.mark.parametrize(
    ("fields", "as_base64"),
    [
        ({}, False),
        ({"encoding_format": None}, False),
        ({"encoding_format": "float"}, False),
        ({"encoding_format": "base64"}, True),
    ],
)
def test_M01_encoding_formats(fields: dict[str, Any], as_base64: bool) -> None:
    assert parse({"input": "x", **fields}, 4).base64 is as_base64


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("encoding_format", "int8"),
        ("encoding_format", ["float"]),
        ("encoding_format", 1),
        ("dimensions", 2),
        ("dimensions", 0),
        ("dimensions", 4.0),
        ("dimensions", "4"),
        ("dimensions", True),
        ("truncate", True),
        ("input_type", "query"),
    ],
)
def test_M01_what_cannot_be_done_is_400_naming_the_field(field: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        parse({"input": "x", field: value}, 1 if value is True else 4)
    assert caught.value.kind.status == 400
    assert caught.value.param == field


@pytest.mark.parametrize(("wanted", "dimensions"), [(None, 4), (4, 4), (2, 2), (3, 3)])
def test_dimensions_that_the_model_was_trained_for(wanted: int | None, dimensions: int) -> None:
    assert parse({"input": "x", "dimensions": wanted}, 4, (2, 3)).dimensions == dimensions


def test_other_dimensions_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(RequestError, match="dimensions must be one of 2, 3, 4, to which") as caught:
        parse({"input": "x", "dimensions": 1}, 4, (2, 3))
    assert (caught.value.kind.status, caught.value.param) == (400, "dimensions")


def test_a_shorter_vector_is_the_beginning_at_length_one() -> None:
    vectors = np.array([[0.6, 0.0, 0.8], [0.0, 0.0, 1.0]], np.float32)
    assert shorten(vectors, 3) is vectors
    np.testing.assert_array_equal(shorten(vectors, 2), np.array([[1, 0], [0, 0]], np.float32))
    assert shorten(vectors, 2).dtype == np.float32


def test_fields_without_effect_are_taken_and_named() -> None:
    body = {"input": "x", "user": "u", "metadata": {}, "dimensions": 4, "store": None, "truncate": None}
    assert parse(body, 4).ignored == ("user", "metadata")


def test_M01_both_encodings_carry_the_same_float32_bit_for_bit() -> None:
    vectors = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    vectors[0, 0] = np.float32(1e-42)
    plain = orjson.loads(render("m", vectors, 7, as_base64=False))
    coded = orjson.loads(render("m", vectors, 7, as_base64=True))
    for index, row in enumerate(vectors):
        decoded = np.frombuffer(base64.b64decode(coded["data"][index]["embedding"]), "<f4")
        assert decoded.tolist() == row.tolist() == plain["data"][index]["embedding"]


def test_the_answer_has_openai_shape() -> None:
    answer = orjson.loads(render("m", np.array([[0.5, 1.0], [2.0, 3.0]], np.float32), 7, as_base64=False))
    assert answer == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, 1.0]},
            {"object": "embedding", "index": 1, "embedding": [2.0, 3.0]},
        ],
        "model": "m",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
