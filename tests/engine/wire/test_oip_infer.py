"""POST /v2/models/{model}/infer over the engine's own socket, with tiny graphs on the real runtime."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from onnx import TensorProto

from tests.engine.tiny_tensors import WEIGHTS, identity, linear, write_folder
from tests.engine.wire.oip_box import HEADER_LENGTH, Box, serve, tensor

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Box]:
    """m: y = x @ WEIGHTS, and the sums of x's rows. The others: y = x."""
    path = tmp_path_factory.mktemp("oip")
    folders = (
        write_folder(path / "m", linear()),
        write_folder(path / "same", identity()),
        write_folder(path / "text", identity(TensorProto.STRING, ["n", "k"])),
        write_folder(path / "half", identity(TensorProto.FLOAT16, ["n", 2])),
    )
    async with serve(path, *folders, max_batch=4) as running:
        yield running


def rows(count: int, first: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(first * 4, (first + count) * 4, dtype=np.float32).reshape(count, 4)


def sized(raw: bytes, shape: list[int], datatype: str = "FP32", name: str = "x") -> dict[str, Any]:
    """An input in binary form."""
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(raw)}}


@pytest.mark.parametrize("padding", range(5))
async def test_a_large_tensor_is_the_same_wherever_it_begins(box: Box, padding: int) -> None:
    """It is read into the place where the model finds it."""
    raw = np.arange(1 << 17, dtype=np.float32).tobytes()
    request = {"id": "x" * padding, "inputs": [sized(raw, [1, 1 << 17])], "parameters": {"binary_data_output": True}}
    answer = await box.infer(request, raw, model="same")
    assert answer.status == 200
    assert answer.binary == raw


@pytest.mark.parametrize("name", [b"%FF", b"%ED%B3%BF", b"\xff", b"\xc3\xa9", b"%00"])
async def test_a_name_that_is_no_text_is_not_found(box: Box, name: bytes) -> None:
    answer = await box.send(
        b"GET /v2/models/%b HTTP/1.1\r\nHost: e\r\nX: %b\r\nConnection: close\r\n\r\n" % (name, name)
    )
    assert answer.status == (404 if name[:1] == b"%" else 400)
    assert answer.error


async def test_json_in_and_out(box: Box) -> None:
    answer = await box.infer({"id": "7", "inputs": [tensor(rows(2))]})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert {key: answer.json[key] for key in ("model_name", "model_version", "id")} == {
        "model_name": "m",
        "model_version": "1",
        "id": "7",
    }
    assert [(each["name"], each["datatype"], each["shape"]) for each in answer.json["outputs"]] == [
        ("y", "FP32", [2, 3]),
        ("sum", "FP32", [2]),
    ]
    np.testing.assert_allclose(answer.array("y"), rows(2) @ WEIGHTS, rtol=1e-6)
    assert answer.array("sum").tolist() == [6, 22]


async def test_only_the_outputs_that_are_asked_for_come_in_the_order_of_the_question(box: Box) -> None:
    answer = await box.infer({"inputs": [tensor(rows(1))], "outputs": [{"name": "sum"}]})
    assert [each["name"] for each in answer.json["outputs"]] == ["sum"]
    assert "id" not in answer.json
    refused = await box.infer({"inputs": [tensor(rows(1))], "outputs": [{"name": "z"}]})
    assert (refused.status, refused.error) == (400, "the model has no output 'z'; it has: y, sum")


async def test_n01_binary_in_and_out(box: Box) -> None:
    raw = rows(2).tobytes()
    answer = await box.infer(
        {
            "inputs": [sized(raw, [2, 4])],
            "parameters": {"binary_data_output": True},
            "outputs": [{"name": "sum"}, {"name": "y"}],
        },
        raw,
    )
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/octet-stream"
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert [each["parameters"]["binary_data_size"] for each in answer.json["outputs"]] == [8, 24]
    assert not any("data" in each for each in answer.json["outputs"])
    np.testing.assert_array_equal(np.frombuffer(answer.binary[:8], "<f4"), [6, 22])
    np.testing.assert_allclose(np.frombuffer(answer.binary[8:], "<f4").reshape(2, 3), rows(2) @ WEIGHTS, rtol=1e-6)
    mixed = await box.infer(
        {
            "inputs": [sized(raw, [2, 4])],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}, {"name": "sum"}],
        },
        raw,
    )
    assert len(mixed.binary) == 24
    assert mixed.array("sum").tolist() == [6, 22]


async def test_n01_a_megabyte_in_binary_form_comes_back_bit_by_bit(box: Box) -> None:
    raw = np.random.default_rng(0).bytes(1 << 20)
    request = {"inputs": [sized(raw, [2, 1 << 17])], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    answer = await box.infer(request, raw, "same")
    assert answer.status == 200
    assert answer.binary == raw
    array = np.random.default_rng(1).standard_normal((1, 1 << 15)).astype(np.float32)
    as_json = await box.infer({"inputs": [tensor(array)]}, None, "same")
    np.testing.assert_array_equal(as_json.array("y").astype(np.float32), array)


@pytest.mark.parametrize(
    ("request_", "binary", "length", "says"),
    [
        ({"inputs": [sized(b"\0" * 16, [1, 4])]}, b"\0" * 16, None, "'x': binary_data_size is said"),
        ({"inputs": [sized(b"\0" * 16, [1, 4])]}, b"", None, "'x': binary_data_size is 16, and 0 bytes"),
        ({"inputs": [sized(b"\0" * 16, [1, 4])]}, b"\0" * 16, "-1", HEADER_LENGTH),
        ({"inputs": [sized(b"\0" * 16, [1, 4])]}, b"\0" * 16, "abc", HEADER_LENGTH),
        ({"inputs": [sized(b"\0" * 16, [1, 4])]}, b"\0" * 16, "1e2", HEADER_LENGTH),
        ({"inputs": [sized(b"\0" * 16, [1, 4])]}, b"\0" * 16, "99999", "is 99999, and the body has"),
        ({"inputs": [sized(b"\0" * 16, [1, 4])]}, b"\0" * 16, "9" * 40, HEADER_LENGTH),
        ({"inputs": [sized(b"\0" * 16, [1, 4])]}, b"\0" * 16, "5", "not JSON"),
        ({"inputs": [sized(b"\0" * 16, [1, 4])]}, b"\0" * 15, "right", "'x': binary_data_size is 16, and 15"),
        (
            {"inputs": [sized(b"\0" * 16, [1, 4])]},
            b"\0" * 17,
            "right",
            "17 bytes of binary data, and the inputs take 16",
        ),
        ({"inputs": [sized(b"\0" * 12, [1, 4])]}, b"\0" * 12, "right", "'x': has 12 bytes"),
    ],
)
async def test_n01_lengths_that_contradict_each_other(
    box: Box, request_: Any, binary: bytes, length: str | None, says: str
) -> None:
    content = json.dumps(request_).encode()
    headers = {} if length is None else {HEADER_LENGTH: str(len(content)) if length == "right" else length}
    answer = await box.ask("POST", "/v2/models/m/infer", content + binary, **headers)
    assert answer.status == 400
    assert says in answer.error
    assert (await box.infer({"inputs": [tensor(rows(1))]})).status == 200


async def test_n01_a_body_of_gigabytes_is_refused_by_its_head(box: Box) -> None:
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: e\r\nConnection: close\r\n"
    answer = await box.send(head + b"Inference-Header-Content-Length: 100\r\nContent-Length: 3000000000\r\n\r\n{")
    assert answer.status == 413
    assert "larger than" in answer.error


async def test_n01_two_header_lengths_are_none(box: Box) -> None:
    content = json.dumps({"inputs": [tensor(rows(1))]}).encode()
    twice = f"{HEADER_LENGTH}: {len(content)}\r\n{HEADER_LENGTH}: 5\r\n".encode()
    answer = await box.send(
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: e\r\nConnection: close\r\n"
        + twice
        + f"Content-Length: {len(content)}\r\n\r\n".encode()
        + content
    )
    assert answer.status == 400
    assert HEADER_LENGTH in answer.error


async def test_n02_shapes_that_lie(box: Box) -> None:
    values = rows(2)
    for changes, says in (
        ({"shape": [2, 3]}, "'x': data has 8 elements"),
        ({"shape": [-1, 4]}, "'x': shape"),
        ({"shape": [0]}, "'x': shape"),
        ({"shape": []}, "'x': data has 8 elements"),
        ({"shape": [], "data": [1]}, "'x' is of shape []"),
        ({"shape": [1, 8]}, "'x' is of shape [1, 8]; the model takes [-1, 4]"),
        ({"shape": [2, 2, 2]}, "'x' is of shape [2, 2, 2]"),
        ({"shape": [2**31, 2**31]}, "'x': data has 8 elements"),
        ({"datatype": "FP64"}, "'x' is of datatype FP64; the model takes FP32"),
        ({"name": "z"}, "no input 'z'"),
    ):
        answer = await box.infer({"inputs": [{**tensor(values), **changes}]})
        assert answer.status == 400
        assert says in answer.error


async def test_n02_nobody_is_given_the_rows_of_another(box: Box) -> None:
    good = [box.infer({"inputs": [tensor(rows(1 + n % 3, n))]}) for n in range(20)]
    bad = [box.infer({"inputs": [{**tensor(rows(2)), "shape": [1, 8]}]}) for _ in range(20)]
    answers = await asyncio.gather(*(each for pair in zip(good, bad, strict=True) for each in pair))
    for n, answer in enumerate(answers[::2]):
        np.testing.assert_allclose(answer.array("y"), rows(1 + n % 3, n) @ WEIGHTS, rtol=1e-6)
    assert {answer.status for answer in answers[1::2]} == {400}


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e400", "3.5e38", "true", '"1"', "null"])
async def test_n04_n05_numbers_that_are_none(box: Box, value: str) -> None:
    body = json.dumps({"inputs": [tensor(rows(1))]}).replace("3.0]", value + "]")
    answer = await box.ask("POST", "/v2/models/m/infer", body.encode())
    assert answer.status == 400
    assert "the input 'x'" in answer.error


async def test_n04_fp16_comes_and_goes_in_both_forms(box: Box) -> None:
    array = np.array([[0.1, -65504]], np.float16)
    answer = await box.infer({"inputs": [tensor(array, "FP16")]}, None, "half")
    assert answer.array("y").astype(np.float16).tobytes() == array.tobytes()
    raw = array.tobytes()
    request = {"inputs": [sized(raw, [1, 2], "FP16")], "parameters": {"binary_data_output": True}}
    assert (await box.infer(request, raw, "half")).binary == raw


async def test_n05_not_a_number_comes_out_in_binary_form_alone(box: Box) -> None:
    raw = np.array([0x3F800000, 0x7FC00001, 0xFF800000], "<u4").tobytes()
    inputs = [sized(raw, [1, 3])]
    answer = await box.infer({"inputs": inputs}, raw, "same")
    assert answer.status == 400
    assert answer.error == (
        "the output 'y' holds NaN or infinity, which JSON cannot carry; ask for it with \"binary_data\": true"
    )
    answer = await box.infer({"inputs": inputs, "parameters": {"binary_data_output": True}}, raw, "same")
    assert answer.binary == raw


async def test_text_is_strings_in_json_and_framed_bytes_in_binary_form(box: Box) -> None:
    asked = {"name": "x", "shape": [1, 3], "datatype": "BYTES"}
    answer = await box.infer({"inputs": [{**asked, "data": ["é", "", "http://a"]}]}, None, "text")
    assert answer.json["outputs"][0]["data"] == ["é", "", "http://a"]
    raw = b"\2\0\0\0\xc3\xa9\0\0\0\0\1\0\0\0a"
    request = {"inputs": [sized(raw, [1, 3], "BYTES")], "parameters": {"binary_data_output": True}}
    assert (await box.infer(request, raw, "text")).binary == raw
    request = {"inputs": [sized(b"\1\0\0\0\xff", [1, 1], "BYTES")]}
    answer = await box.infer(request, b"\1\0\0\0\xff", "text")
    assert (answer.status, answer.error) == (400, "the input 'x': element 0 is not UTF-8 text")


async def test_a_body_of_bytes_alone_is_the_input_and_its_answer_is_binary(box: Box) -> None:
    raw = rows(3).tobytes()
    answer = await box.ask("POST", "/v2/models/m/infer", raw, **{HEADER_LENGTH: "0"})
    assert answer.status == 200
    np.testing.assert_allclose(np.frombuffer(answer.binary[:36], "<f4").reshape(3, 3), rows(3) @ WEIGHTS, rtol=1e-6)


async def test_a_timeout_that_has_passed_and_priorities(box: Box) -> None:
    request = {"inputs": [tensor(rows(1))], "parameters": {"timeout": 60_000_000, "priority": 1}}
    assert (await box.infer(request)).status == 200
    request["parameters"] = {"priority": 9}
    assert "priority must be from 0 to 3" in (await box.infer(request)).error
    late = await box.infer({"inputs": [tensor(rows(1))], "parameters": {"timeout": 1}})
    assert late.status == 408
    assert "deadline" in late.error


async def test_what_is_not_there_and_what_is_not_meant(box: Box) -> None:
    request = {"inputs": [tensor(rows(1))]}
    missing = await box.infer(request, None, "other")
    assert missing.status == 404
    assert "there is no such model" in missing.error
    assert (await box.ask("POST", "/v2/models/m/versions/1/infer", json.dumps(request).encode())).status == 200
    version = await box.ask("POST", "/v2/models/m/versions/2/infer", json.dumps(request).encode())
    assert (version.status, version.error) == (404, "the model 'm' has no such version here; it has: 1")
    assert (await box.get("/v2/nothing")).error.startswith("there is nothing at this path")
    method = await box.get("/v2/models/m/infer")
    assert (method.status, method.headers["allow"]) == (405, "POST")
    assert method.error == "use POST here"
    packed = await box.ask("POST", "/v2/models/m/infer", b"x", Content_Encoding="gzip")
    assert packed.status == 415
    assert "compressed" in packed.error


async def test_fields_that_change_nothing_are_named(box: Box) -> None:
    answer = await box.infer({"model_name": "m", "inputs": [tensor(rows(1))]})
    assert answer.headers["headrace-ignored"] == "model_name"
