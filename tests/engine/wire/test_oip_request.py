"""Inference requests: header and binary data to tensors, and every way in which they contradict each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.tensor_facts import TensorFacts
from engine.wire.body import MAX_BRACKETS
from engine.wire.oip_header import outline_of, parse_header
from engine.wire.oip_raw import parse_raw
from engine.wire.oip_request import InferRequest, fill, parse

X = {"name": "x", "shape": [2], "datatype": "INT32"}


def binary(size: Any, **changes: Any) -> dict[str, Any]:
    return {**X, "parameters": {"binary_data_size": size}, **changes}


def read(header: Any, rest: bytes = b"") -> InferRequest:
    return parse(parse_header(orjson.dumps(header)), memoryview(rest))


def refused(header: Any, rest: bytes = b"") -> str:
    with pytest.raises(RequestError) as caught:
        read(header, rest)
    assert caught.value.kind.status == 400
    return caught.value.message


def test_a_request_with_everything() -> None:
    request = read(
        {
            "id": "a",
            "model_name": "m",
            "parameters": {"binary_data_output": True, "priority": 3, "timeout": 1500},
            "inputs": [binary(8), {**X, "name": "y", "data": [3, 4], "parameters": None}],
            "outputs": [{"name": "o"}, {"name": "p", "parameters": {"binary_data": False}}],
        },
        np.array([1, 2], "<i4").tobytes(),
    )
    assert {name: array.tolist() for name, array in request.inputs.items()} == {"x": [1, 2], "y": [3, 4]}
    assert request.outputs == {"o": True, "p": False}
    assert (request.id, request.level, request.timeout_s) == ("a", 2, 0.0015)
    assert request.ignored == ("model_name",)


def test_no_outputs_are_all_of_them() -> None:
    assert read({"inputs": [{**X, "data": [1, 2]}], "outputs": []}).outputs is None


def test_priorities_count_as_tritons_do() -> None:
    levels = [read({"inputs": [{**X, "data": [1, 2]}], "parameters": {"priority": p}}).level for p in range(4)]
    assert levels == [None, 0, 1, 2]


def test_n01_binary_data_is_taken_in_the_order_of_the_inputs() -> None:
    request = read(
        {"inputs": [binary(8), binary(3, name="b", shape=[3], datatype="BOOL"), binary(9, name="s", datatype="BYTES")]},
        np.array([-1, 2], "<i4").tobytes() + b"\1\0\1" + b"\1\0\0\0a\0\0\0\0",
    )
    assert request.inputs["x"].tolist() == [-1, 2]
    assert request.inputs["b"].tolist() == [True, False, True]
    assert request.inputs["s"].tolist() == [b"a", b""]


@pytest.mark.parametrize(
    ("inputs", "rest", "says"),
    [
        ([binary(8)], b"", "binary_data_size is 8, and 0 bytes"),
        ([binary(8)], b"\0" * 7, "and 7 bytes"),
        ([binary(8)], b"\0" * 9, "must be equal"),
        ([binary(8), binary(8, name="y")], b"\0" * 15, "'y': binary_data_size is 8, and 7 bytes"),
        ([binary(4)], b"\0" * 4, "takes 8"),
        ([binary(-1)], b"\0" * 8, "'x': binary_data_size must be"),
        ([binary("abc")], b"\0" * 8, "'x': binary_data_size must be"),
        ([binary("8")], b"\0" * 8, "'x': binary_data_size must be"),
        ([binary(8.0)], b"\0" * 8, "'x': binary_data_size must be"),
        ([binary(True)], b"\0" * 8, "'x': binary_data_size must be"),
        ([binary(2**40)], b"\0" * 8, "'x': binary_data_size is 1099511627776"),
        ([binary(8, data=[1, 2])], b"\0" * 8, "'x': must have data or"),
        ([X], b"", "'x': must have data or"),
        ([{**X, "data": [1, 2]}], b"\0", "1 bytes of binary data, and the inputs take 0"),
    ],
)
def test_n01_binary_sizes_that_contradict_each_other(inputs: Any, rest: bytes, says: str) -> None:
    assert says in refused({"inputs": inputs}, rest)


@pytest.mark.parametrize("shape", [[-1, 3], [0], [2, 0], [2.0], ["2"], [True], "2", None, [1] * 17, {}])
def test_n02_shapes_that_are_none(shape: Any) -> None:
    assert "'x': shape" in refused({"inputs": [{**X, "shape": shape, "data": [1, 2]}]})


@pytest.mark.parametrize("shape", [[2**31, 2**31], [2**62, 4], [2**33]])
def test_n02_shapes_beyond_all_memory(shape: Any) -> None:
    assert "'x'" in refused({"inputs": [{**X, "shape": shape, "data": [1, 2]}]})
    assert "'x'" in refused({"inputs": [binary(8, shape=shape)]}, b"\0" * 8)


@pytest.mark.parametrize("datatype", ["STRING", "fp32", "BF16", "", 1, None, ["INT32"]])
def test_n04_datatypes_that_there_are_not(datatype: Any) -> None:
    assert "'x': datatype must be one of BOOL" in refused({"inputs": [{**X, "datatype": datatype, "data": [1, 2]}]})


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_n05_a_number_that_is_none_in_json_names_its_tensor(number: str) -> None:
    body = b'{"inputs": [{"name": "x", "shape": [2, 1], "datatype": "FP32", "data": [[1], [%b]]}]}' % number.encode()
    with pytest.raises(RequestError, match="'x': data holds NaN, Infinity or a number beyond FP64") as caught:
        parse_header(body)
    assert caught.value.kind.status == 400
    with pytest.raises(RequestError, match="not JSON"):
        parse_header(b'{"parameters": {"timeout": %b}}' % number.encode())


@pytest.mark.parametrize(
    "body",
    [
        b'{"id": "a", "id": "b"}',
        b'{"inputs": [{"name": "x", "name": "y"}]}',
        b'{"parameters": {"priority": 1, "priority": 3}}',
        b'{"outputs": [{"name": "x", "parameters": {"binary_data": true, "binary_data": false}}]}',
        b'{"x": [[[{"a": 1, "a": 2}]]]}',
        b'{"id": "\\ud800"}',
        b'{"id": "\xff"}',
        b'{"id": "a"',
        b'{"id": "a"} x',
        b"[" * 100_000,
        b'{"x": [' + b"[]," * MAX_BRACKETS + b"1]}",
        b"[1]",
        b"1",
        b"",
    ],
)
def test_what_is_not_one_json_object_without_doubt_is_a_400(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_header(body)
    assert caught.value.kind.status == 400


@given(st.dictionaries(st.text(), st.recursive(
    st.none() | st.booleans() | st.text() | st.integers(-(2**63), 2**63), st.lists, max_leaves=9)
))  # fmt: skip
def test_colons_in_strings_are_text(value: dict[str, Any]) -> None:
    assert parse_header(orjson.dumps(value)) == value


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"inputs": []}, "inputs must be"),
        ({"inputs": None}, "inputs must be"),
        ({"inputs": {}}, "inputs must be"),
        ({"inputs": [1]}, "inputs must be"),
        ({"inputs": [{**X, "data": [1, 2]}] * 2}, "'x' stands there twice"),
        ({"inputs": [{**X, "name": "", "data": [1, 2]}]}, "each needs a name"),
        ({"inputs": [{**X, "name": "n" * 256, "data": [1, 2]}]}, "each needs a name"),
        ({"inputs": [{**X, "name": str(n), "data": [1, 2]} for n in range(257)]}, "at most 256"),
        (
            {"inputs": [{**X, "data": [1, 2], "parameters": {"shared_memory_region": "r"}}]},
            "shared_memory_region is not",
        ),
        ({"inputs": [{**X, "data": [1, 2], "parameters": 1}]}, "parameters must be an object"),
        ({"outputs": {}}, "outputs must be"),
        ({"outputs": [{"name": "o"}, {"name": "o"}]}, "'o' stands there twice"),
        ({"outputs": [{"name": "o", "parameters": {"binary_data": 1}}]}, "'o': binary_data must be true or false"),
        ({"outputs": [{"name": "o", "parameters": {"classification": 3}}]}, "classification is not supported"),
        ({"parameters": {"binary_data_output": "yes"}}, "binary_data_output must be"),
        ({"parameters": {"sequence_id": 3}}, "sequence_id is not supported"),
        ({"parameters": {"priority": 4}}, "priority must be from 0 to 3"),
        ({"parameters": {"priority": "1"}}, "priority must be a whole number"),
        ({"parameters": {"timeout": -1}}, "timeout must be"),
        ({"parameters": {"timeout": 1.5}}, "timeout must be"),
        ({"id": 1}, "id must be a string"),
        ({"other": 1}, "other is not supported"),
    ],
)
def test_fields_that_are_wrong_are_named(changes: dict[str, Any], says: str) -> None:
    assert says in refused({"inputs": [{**X, "data": [1, 2]}], **changes})


def raw(body: bytes, *inputs: tuple[str, tuple[int, ...]]) -> Any:
    facts = [
        TensorFacts.model_validate({"name": f"x{index}", "datatype": datatype, "shape": shape})
        for index, (datatype, shape) in enumerate(inputs)
    ]
    return parse_raw(memoryview(body), facts).inputs["x0"].tolist()


def test_a_body_without_header_is_the_only_input() -> None:
    assert raw(b"\1\2\3\4\5\6", ("UINT8", (-1, 3))) == [[1, 2, 3], [4, 5, 6]]
    assert raw(b"\1\2\3\4\5\6", ("UINT8", (-1, -1))) == [[1, 2, 3, 4, 5, 6]]
    assert raw(b"\1\2\3", ("UINT8", (3,))) == [1, 2, 3]
    assert raw(b"\xff\0", ("BYTES", (-1, 1))) == [[b"\xff\0"]]
    assert raw(b"", ("BYTES", (1,))) == [b""]


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        (b"\1\2", [("UINT8", (-1, 3))]),
        (b"\1\2\3\4", [("UINT8", (-1, 3))]),
        (b"", [("UINT8", (-1, 3))]),
        (b"\1\2\3\4", [("UINT8", (-1, -1, -1))]),
        (b"\1", [("UINT8", (-1,)), ("UINT8", (-1,))]),
        (b"\1", [("BYTES", (2,))]),
    ],
)
def test_n01_a_body_without_header_that_leaves_doubt(body: bytes, inputs: Any) -> None:
    with pytest.raises(RequestError) as caught:
        raw(body, *inputs)
    assert caught.value.kind.status == 400


def test_a_header_that_came_before_takes_the_tensors_that_come_now() -> None:
    raw = orjson.dumps({"id": "a", "inputs": [binary(8)]})
    for numbers in ([1, 2], [3, 4]):
        rest = np.array(numbers, np.int32).tobytes()
        request = fill(outline_of(raw, has_binary=True), memoryview(rest))
        assert request.id == "a"
        assert request.inputs["x"].tolist() == numbers
        with pytest.raises(RequestError):
            fill(outline_of(raw, has_binary=True), memoryview(rest + b"x"))
