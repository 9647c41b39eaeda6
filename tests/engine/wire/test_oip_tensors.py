"""JSON values and bytes to tensors and back: every number as it was, and every refusal with the tensor's name."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from engine.errors import RequestError
from engine.tensor_facts import Datatype
from engine.tensors.datatypes import DTYPES
from engine.wire import oip_binary, oip_json

NUMBERS: list[Datatype] = [name for name in DTYPES if name != "BYTES"]


def refused(work: Any, *arguments: Any) -> str:
    """The message of the 400 that the call must end with; it names the tensor."""
    with pytest.raises(RequestError) as caught:
        work(*arguments, "the input 'x'")
    assert caught.value.kind.status == 400
    assert caught.value.message.startswith("the input 'x'")
    return caught.value.message


@pytest.mark.parametrize(
    ("datatype", "value", "says"),
    [
        ("UINT8", 256, "outside UINT8, 0 to 255"),
        ("UINT8", -1, "outside UINT8"),
        ("INT8", 128, "outside INT8"),
        ("INT32", 2**31, "outside INT32"),
        ("INT32", -(2**31) - 1, "outside INT32"),
        ("UINT32", 2**32, "outside UINT32"),
        ("INT64", 2**63, "outside INT64"),
        ("UINT64", 2**64, "outside UINT64"),
        ("INT64", 1.5, "element 1 is 1.5"),
        ("INT64", 1.0, "element 1 is 1.0"),
        ("INT64", 1e300, "element 1 is 1e+300"),
        ("INT64", True, "element 1 is true"),
        ("INT64", "1", "element 1 is a string"),
        ("INT64", None, "element 1 is null"),
        ("INT64", [1], "element 1 is an array"),
        ("FP32", True, "element 1 is true"),
        ("FP32", "1", "element 1 is a string"),
        ("FP32", {}, "element 1 is an object"),
        ("FP32", 3.5e38, "beyond the largest of FP32"),
        ("FP32", -(10**39), "beyond the largest of FP32"),
        ("FP16", 65520, "beyond the largest of FP16"),
        ("FP64", 10**400, "beyond the largest of FP64"),
        ("BOOL", 1, "element 1 is 1"),
        ("BOOL", "true", "element 1 is a string"),
        ("BYTES", 1, "element 1 is 1"),
    ],
)
def test_n04_numbers_that_do_not_fit(datatype: Datatype, value: Any, says: str) -> None:
    good = "a" if datatype == "BYTES" else datatype == "BOOL"
    data = [good if isinstance(good, str) or datatype == "BOOL" else 1, value]
    assert says in refused(oip_json.to_array, data, datatype, [2])


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ([[1], [2, 3]], [3]),
        ([[1], [2, 3]], [2, 2]),
        ([[1, 2], [3, 4]], [4]),
        ([[1, 2], [3, 4]], [4, 1]),
        ([[1, 2], 3, 4], [2, 2]),
        ([1, 2, [3, 4]], [2, 2]),
        ([[[1, 2, 3, 4]]], [2, 2]),
        ([[1, 2], [3, [4]]], [2, 2]),
        ([[], []], [2, 1]),
        ([1, 2, 3, 4, 5], [2, 3]),
        ([1, 2, 3, 4, 5, 6, 7], [2, 3]),
        ([], [1]),
        ([1], [2**31, 2**31]),
        ([1], [2**62, 4]),  # 0 in 64 bits
        ([], []),
        ([1, 2], []),
        (1, []),
        ("1", [1]),
        (None, [1]),
    ],
)
def test_n02_n04_data_that_has_not_its_shape(data: Any, shape: list[int]) -> None:
    refused(oip_json.to_array, data, "INT64", shape)


def test_data_is_flat_or_nested_as_its_shape() -> None:
    for data in ([1, 2, 3, 4], [[1, 2], [3, 4]]):
        array = oip_json.to_array(data, "INT32", [2, 2], "x")
        assert array.dtype == np.int32
        assert array.tolist() == [[1, 2], [3, 4]]
    assert oip_json.to_array([7], "INT8", [], "x").shape == ()


def test_n04_fp16_takes_json_numbers_as_the_nearest_value() -> None:
    array = oip_json.to_array([0.1, 65519, 1e-8, -0.0], "FP16", [4], "x")
    assert array.dtype == np.float16
    assert array.tobytes() == np.array([0.1, 65504, 0, -0.0], np.float16).tobytes()


def test_whole_numbers_are_taken_by_floats_and_both_ends_of_every_range_fit() -> None:
    assert oip_json.to_array([1, 2.5], "FP32", [2], "x").tolist() == [1, 2.5]
    for name in NUMBERS:
        if DTYPES[name].kind in "iu":
            limits = np.iinfo(DTYPES[name])
            assert oip_json.to_array([limits.min, limits.max], name, [2], "x").tolist() == [limits.min, limits.max]


def test_n05_an_output_that_json_cannot_carry_points_to_binary() -> None:
    for array, datatype in (
        (np.array([1, np.nan, np.inf], np.float32), "FP32"),
        (np.array([-np.inf], np.float16), "FP16"),
        (np.array([b"\xff"], object), "BYTES"),
    ):
        with pytest.raises(RequestError, match=re.escape("the output 'y' holds")) as caught:
            oip_json.from_array(array, datatype, "y")
        assert '"binary_data": true' in caught.value.message
        assert caught.value.kind.status == 400


def test_n05_binary_is_bit_exact() -> None:
    for raw in (struct.pack("<3I", 0x3F800000, 0x7FC00001, 0xFF800000), struct.pack("<I", 0x7F800001)):
        array = oip_binary.to_array(memoryview(raw), "FP32", [len(raw) // 4], "x")
        assert bytes(oip_binary.from_array(array, "FP32")) == raw


def numbers(datatype: Datatype) -> st.SearchStrategy[tuple[Datatype, np.ndarray[Any, Any]]]:
    """Arrays of every shape that JSON can carry."""
    shapes = arrays.array_shapes(min_dims=0, max_dims=4, max_side=4)
    finite = {"allow_nan": False, "allow_infinity": False} if DTYPES[datatype].kind == "f" else None
    return st.tuples(st.just(datatype), arrays.arrays(DTYPES[datatype], shapes, elements=finite))


@given(st.sampled_from(NUMBERS).flatmap(numbers))
def test_every_tensor_comes_back_bit_by_bit_by_json_and_in_binary(case: tuple[Datatype, np.ndarray[Any, Any]]) -> None:
    datatype, array = case
    shape = list(array.shape)
    written = orjson.dumps(oip_json.from_array(array, datatype, "y"), option=orjson.OPT_SERIALIZE_NUMPY)
    for read in (
        oip_json.to_array(orjson.loads(written), datatype, shape, "x"),
        oip_json.to_array([array.tolist()] if not shape else array.tolist(), datatype, shape, "x"),
        oip_binary.to_array(oip_binary.from_array(array, datatype), datatype, shape, "x"),
    ):
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert read.tobytes() == array.tobytes()


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=9))
def test_bytes_come_back_as_they_were(elements: list[bytes]) -> None:
    array = np.empty(len(elements), object)
    array[:] = elements
    raw = oip_binary.from_array(array, "BYTES")
    assert oip_binary.to_array(raw, "BYTES", [len(elements)], "x").tolist() == elements
    refused(oip_binary.to_array, raw[:-1], "BYTES", [len(elements)])
    refused(oip_binary.to_array, memoryview(bytes(raw) + b"\0"), "BYTES", [len(elements)])
    refused(oip_binary.to_array, raw, "BYTES", [len(elements) + 1])


def test_strings_are_utf_8_both_ways() -> None:
    array = oip_json.to_array(["é", "", "\0"], "BYTES", [3], "x")
    assert array.tolist() == [b"\xc3\xa9", b"", b"\0"]
    assert oip_json.from_array(array, "BYTES", "y") == ["é", "", "\0"]
    assert bytes(oip_binary.from_array(np.array(["é"], object), "BYTES")) == b"\2\0\0\0\xc3\xa9"


@pytest.mark.parametrize(
    ("raw", "datatype", "shape"),
    [
        (b"\0" * 7, "FP32", [2]),
        (b"\0" * 9, "FP32", [2]),
        (b"\0" * 8, "FP32", [2**62, 4]),
        (b"\0\2", "BOOL", [2]),
        (b"", "INT8", [1]),
        (b"\xff\xff\xff\xff", "BYTES", [1]),
        (b"\1\0\0", "BYTES", [1]),
        (b"\0\0\0\0", "BYTES", [2**40]),
    ],
)
def test_n01_bytes_that_are_not_the_tensor(raw: bytes, datatype: Datatype, shape: list[int]) -> None:
    refused(oip_binary.to_array, memoryview(raw), datatype, shape)


def test_bytes_are_looked_at_where_they_lie_unless_their_place_is_odd() -> None:
    body = memoryview(np.zeros(17, np.uint8))
    assert np.shares_memory(oip_binary.to_array(body[:16], "FP32", [4], "x"), np.asarray(body))
    odd = oip_binary.to_array(body[1:], "FP32", [4], "x")
    assert odd.flags.aligned
    array = np.zeros((2, 2), np.float32)
    assert np.shares_memory(np.frombuffer(oip_binary.from_array(array, "FP32"), np.uint8), array)
