"""The safetensors container: named arrays behind a JSON header, mapped and read where they lie.

Owns the file's layout and every bound that a damaged or hostile file could break: the header's length, each tensor's
dtype, shape and place, and that the tensors fill the data without holes or overlaps. Knows nothing of any model.
Layout: u64 little-endian header length, the JSON header, the data (https://github.com/huggingface/safetensors#format).
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from engine.model_folder import ModelError

_HEADER_LIMIT_BYTES = 100_000_000  # the reference implementation's own limit
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_ITEM_BYTES = {name: np.dtype(dtype).itemsize for name, dtype in _DTYPES.items()}
_OTHER_ITEM_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8, "F64": 8}


class Tensor(NamedTuple):
    """One entry of the header: where the array lies in the data, in bytes from its beginning."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorFile(Mapping[str, NDArray[np.float32]]):
    """The floating-point tensors of one file by name, each read as float32 of its own shape when it is asked for.

    Integer tensors are counted in the layout but not offered. Raises ModelError when the file is not whole and sound.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise ModelError(f"{path}: cannot be read ({error}); fetch the file again") from error
        data_at, header = self._header()
        self._data = self._bytes[data_at:]
        self.tensors = _layout(path, header, len(self._data))
        self._floats = {name: tensor for name, tensor in self.tensors.items() if tensor.dtype in _ITEM_BYTES}

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return as_float32(self.stored(name))

    def stored(self, name: str) -> NDArray[Any]:
        """The tensor where it lies: float32, float16, or bfloat16 as uint16."""
        tensor = self._floats[name]
        values: NDArray[Any] = self._data[tensor.begin : tensor.end].view(_DTYPES[tensor.dtype])
        return values.reshape(tensor.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._floats)

    def __len__(self) -> int:
        return len(self._floats)

    def _header(self) -> tuple[int, dict[str, Any]]:
        size = len(self._bytes)
        length = int.from_bytes(self._bytes[:8].tobytes(), "little") if size >= 8 else -1
        if not 2 <= length <= min(size - 8, _HEADER_LIMIT_BYTES):
            raise ModelError(f"{self._path}: is not a whole safetensors file; fetch it again")
        try:
            header = orjson.loads(self._bytes[8 : 8 + length].tobytes())
        except orjson.JSONDecodeError as error:
            raise ModelError(f"{self._path}: has a header that is not JSON ({error}); fetch it again") from error
        if not isinstance(header, dict):
            raise ModelError(f"{self._path}: has a header that is not a JSON object; fetch it again")
        header.pop("__metadata__", None)
        return 8 + length, header


def as_float32(stored: NDArray[Any]) -> NDArray[np.float32]:
    """Numbers as `stored` gives them in float32; of a bfloat16 it is the upper half."""
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)


def _layout(path: Path, header: dict[str, Any], data_bytes: int) -> dict[str, Tensor]:
    """The header's entries, checked to tile the data exactly."""
    tensors = {name: _entry(path, name, value) for name, value in header.items()}
    reached = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != reached:
            raise ModelError(f"{path}: tensor {name} does not begin where the one before it ends; fetch the file again")
        reached = tensor.end
    if reached != data_bytes:
        raise ModelError(f"{path}: holds {data_bytes} bytes of data, its header says {reached}; fetch the file again")
    return tensors


def _entry(path: Path, name: str, value: Any) -> Tensor:
    match value:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if all(
            type(side) is int and side >= 0 for side in shape
        ):
            item_bytes = _ITEM_BYTES.get(dtype) or _OTHER_ITEM_BYTES.get(dtype)
            if item_bytes is None:
                raise ModelError(f"{path}: tensor {name} is of type {dtype}, which is not supported; export it as F32")
            if begin >= 0 and end - begin == math.prod(shape) * item_bytes:
                return Tensor(dtype, tuple(shape), begin, end)
    raise ModelError(f"{path}: the entry of tensor {name} is damaged; fetch the file again")
