"""Files and texts as BYTES of an inference request, in binary form and in JSON, beside tensors."""

from __future__ import annotations

import base64
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from tests.engine.adapters.pictures import encode
from tests.engine.tiny_classifier import plain, write_classifier
from tests.engine.wire.oip_box import Answer, Box, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

RED, DARK = (255, 0, 0), (0, 0, 51)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Box]:
    """m takes pictures, texts texts, both both."""
    path = tmp_path_factory.mktemp("adapted")
    folders = (
        write_classifier(path / "m"),
        write_classifier(path / "texts", image=False, text=True),
        write_classifier(path / "both", text=True),
    )
    async with serve(path, *folders, max_batch=4) as running:
        yield running


def picture(color: Any, format_: str = "PNG") -> bytes:
    return encode(plain(color), format_)


def elements(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


async def ask(box: Box, model: str = "m", *, shape: Sequence[int] | None = None, **inputs: Sequence[bytes]) -> Answer:
    """Every input as BYTES in binary form."""
    raw = {name: elements(*values) for name, values in inputs.items()}
    header = {
        "inputs": [
            {
                "name": name,
                "datatype": "BYTES",
                "shape": list(shape or [len(inputs[name])]),
                "parameters": {"binary_data_size": len(content)},
            }
            for name, content in raw.items()
        ]
    }
    return await box.infer(header, b"".join(raw.values()), model=model)


def as_json(name: str, *values: str) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [len(values)], "data": list(values)}


def as_floats(name: str, array: Any, datatype: str = "FP32") -> dict[str, Any]:
    array = np.asarray(array)
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.ravel().tolist()}


@pytest.mark.parametrize("format_", ["PNG", "WEBP", "JPEG"])
async def test_files_in_binary_form(box: Box, format_: str) -> None:
    answer = await ask(box, picture=[picture(RED, format_), picture(DARK, format_)])
    assert answer.status == 200
    np.testing.assert_allclose(answer.array("scores"), [[1, 0, 0], [0, 0, 0.2]], atol=0.02)


async def test_a_column_of_files(box: Box) -> None:
    answer = await ask(box, shape=[2, 1], picture=[picture(RED), picture(DARK)])
    np.testing.assert_allclose(answer.array("scores"), [[1, 0, 0], [0, 0, 0.2]], atol=1e-3)


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
async def test_base64_in_json(box: Box, prefix: str) -> None:
    sent = [prefix + base64.b64encode(picture(color)).decode() for color in (DARK, RED)]
    answer = await box.infer({"inputs": [as_json("picture", *sent)]})
    assert answer.status == 200
    np.testing.assert_allclose(answer.array("scores"), [[0, 0, 0.2], [1, 0, 0]], atol=1e-3)


async def test_texts_of_several_lengths(box: Box) -> None:
    answer = await box.infer({"inputs": [as_json("ids", "a", "a b c d e f")]}, model="texts")
    assert answer.status == 200
    np.testing.assert_allclose(answer.array("scores"), [[0.3, 0, 0], [0.8, 0, 0]], atol=1e-6)


async def test_a_picture_with_a_text(box: Box) -> None:
    answer = await ask(box, "both", picture=[picture(RED), picture(DARK)], ids=[b"a", b"a b"])
    np.testing.assert_allclose(answer.array("scores"), [[1.3, 0, 0], [0.4, 0, 0.2]], atol=1e-3)


async def test_a_text_beside_a_picture_in_floats(box: Box) -> None:
    inputs = [as_json("ids", "a", "a b"), as_floats("picture", np.full((2, 3, 8, 8), 0.5))]
    answer = await box.infer({"inputs": inputs}, model="both")
    assert answer.status == 200
    np.testing.assert_allclose(answer.array("scores"), [[0.8, 0.5, 0.5], [0.9, 0.5, 0.5]], atol=1e-6)


async def test_a_picture_beside_tokens(box: Box) -> None:
    tokens = [as_floats("ids", [[2, 3]], "INT64"), as_floats("mask", [[1, 1]], "INT32")]
    sent = base64.b64encode(picture(DARK)).decode()
    answer = await box.infer({"inputs": [as_json("picture", sent), *tokens]}, model="both")
    assert answer.status == 200
    np.testing.assert_allclose(answer.array("scores"), [[0.2, 0, 0.2]], atol=1e-3)


async def test_floats_alone_as_ever(box: Box) -> None:
    answer = await box.infer({"inputs": [as_floats("picture", np.full((1, 3, 8, 8), 0.25))]})
    np.testing.assert_allclose(answer.array("scores"), [[0.25] * 3], atol=1e-6)


async def test_the_element_at_fault_is_named(box: Box) -> None:
    answer = await ask(box, picture=[picture(RED), b"GIF89a\xff"])
    assert (answer.status, answer.error) == (
        400,
        "the input 'picture': element 1 is neither JPEG nor PNG nor WebP",
    )


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        ("m", [{**as_json("picture", "a", "b"), "shape": [1, 2]}], "BYTES of shape [1, 2]; send [rows] or [rows, 1]"),
        ("m", [{**as_json("picture", "a"), "shape": []}], "BYTES of shape []; send"),
        ("m", [as_json("picture", *["a"] * 257)], "has 257 rows; of BYTES at most 256"),
        ("m", [as_json("picture", "a"), as_json("other", "a")], "'other' is filled by the model's adapter; leave it"),
        ("texts", [as_json("ids", "a"), as_floats("mask", [[1]], "INT32")], "'mask' is filled by the model's adapter"),
        ("both", [as_json("ids", "a", "b"), as_json("picture", "a")], "'picture' has 1 rows and 'ids' has 2"),
        (
            "both",
            [as_json("ids", "a", "b"), as_floats("picture", np.zeros((1, 3, 8, 8)))],
            "has 1 rows and 'ids' has 2",
        ),
        ("both", [as_json("ids", "a")], "the input 'picture' is missing"),
        ("both", [as_json("ids", "a"), as_floats("picture", np.zeros((1, 3, 8, 9)))], "is of shape [1, 3, 8, 9]"),
        ("texts", [as_json("ids", "a " * 20)], "element 0 has 22 tokens, of which at most 16"),
    ],
)
async def test_what_is_refused(box: Box, model: str, inputs: Any, message: str) -> None:
    answer = await box.infer({"inputs": inputs}, model=model)
    assert answer.status in (400, 422)
    assert message in answer.error
