"""The safetensors reader: every type, and every way in which a file may be damaged."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.importers.safetensors import TensorFile
from engine.model_folder import ModelError
from tests.engine.tiny_bert import write_safetensors


def test_reads_each_floating_point_type_as_float32(tmp_path: Path) -> None:
    exact = np.array([[0.5, -2.0, 3.0]], np.float32)
    tensors = {
        "single": exact,
        "half": exact.astype(np.float16),
        "brain": (exact.view(np.uint32) >> 16).astype(np.uint16),
        "whole": np.arange(3),
        "empty": np.empty((0, 4), np.float32),
    }
    write_safetensors(tmp_path / "m.safetensors", tensors)
    file = TensorFile(tmp_path / "m.safetensors")
    assert set(file) == {"single", "half", "brain", "empty"}
    assert "whole" in file.tensors
    for name in ("single", "half", "brain"):
        assert file[name].dtype == np.float32
        np.testing.assert_array_equal(file[name], exact)
    assert file["empty"].shape == (0, 4)


def _write(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def _entry(begin: object, end: object, shape: object = (1,), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": _entry(0, 4)}, b"\0" * 3, "header says 4"),
        ({"a": _entry(0, 4)}, b"\0" * 8, "header says 4"),
        ({"a": _entry(0, 4), "b": _entry(0, 4)}, b"\0" * 4, "b does not begin"),
        ({"a": _entry(0, 4), "b": _entry(8, 12)}, b"\0" * 12, "b does not begin"),
        ({"a": _entry(4, 8)}, b"\0" * 8, "a does not begin"),
        ({"a": _entry(-4, 0)}, b"", "entry of tensor a is damaged"),
        ({"a": _entry(0, 4, shape=(2,))}, b"\0" * 4, "entry of tensor a is damaged"),
        ({"a": _entry(0, 4, shape=(-1, -1))}, b"\0" * 4, "entry of tensor a is damaged"),
        ({"a": _entry(0, 4, shape=(True,))}, b"\0" * 4, "entry of tensor a is damaged"),
        ({"a": _entry(0.0, 4)}, b"\0" * 4, "entry of tensor a is damaged"),
        ({"a": _entry(0, 4, shape=(1 << 62, 1 << 62))}, b"\0" * 4, "entry of tensor a is damaged"),
        ({"a": _entry(0, 4, dtype="F8_E4M3")}, b"\0" * 4, "F8_E4M3"),
        ({"a": 1}, b"", "entry of tensor a is damaged"),
        ([], b"", "not a JSON object"),
        (b"{nonsense", b"", "not JSON"),
    ],
)
def test_damage_is_named(tmp_path: Path, header: object, data: bytes, message: str) -> None:
    path = _write(tmp_path / "m.safetensors", header, data)
    with pytest.raises(ModelError, match=message) as caught:
        TensorFile(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\1", b"\xff" * 8, (1 << 40).to_bytes(8, "little"), b"\x40" + b"\0" * 7])
def test_what_is_no_whole_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.safetensors"):
        TensorFile(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="absent"):
        TensorFile(tmp_path / "absent")


@given(st.data())
def test_a_cut_or_flipped_file_raises_nothing_but_model_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    write_safetensors(path, {"a": np.ones((2, 3), np.float32), "b": np.ones(5, np.float16)})
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        file = TensorFile(path)
    except ModelError:
        return
    for name in file:
        assert file[name].shape == file.tensors[name].shape
