"""The weights file of a model folder: tensors one after another, each on a page boundary so that it can be mapped.

Knows ONNX's external data, nothing of what the tensors mean.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import onnx
from numpy.typing import NDArray

PAGE_BYTES = 4096

_DTYPES = {
    np.dtype(np.int8): onnx.TensorProto.INT8,
    np.dtype(np.uint8): onnx.TensorProto.UINT8,
    np.dtype(np.float16): onnx.TensorProto.FLOAT16,
    np.dtype(np.float32): onnx.TensorProto.FLOAT,
}


class WeightsFile:
    """Writes tensors piece by piece, so that the largest needs no more memory than one of its pieces."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._file = path.open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, name: str, shape: tuple[int, ...], pieces: Iterable[NDArray[np.generic]]) -> onnx.TensorProto:
        """Write the pieces, which follow each other along the first axis, and return the initializer over them.

        All pieces have one dtype (uint8, float16 or float32); ValueError if they do not fill `shape`.
        """
        self._file.write(b"\0" * (-self._file.tell() % PAGE_BYTES))
        offset = self._file.tell()
        dtype: np.dtype[np.generic] | None = None
        for piece in pieces:
            dtype = piece.dtype
            self._file.write(np.ascontiguousarray(piece).data)
        length = self._file.tell() - offset
        if dtype is None or length != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name}: {length} bytes do not fill {shape} of {dtype}")
        tensor = onnx.TensorProto(name=name, dims=shape, data_type=_DTYPES[dtype])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", self._name), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor


def alias(tensor: onnx.TensorProto, name: str, shape: tuple[int, ...]) -> onnx.TensorProto:
    """A second initializer over the same bytes, under another name and shape."""
    other = onnx.TensorProto()
    other.CopyFrom(tensor)
    other.name = name
    del other.dims[:]
    other.dims.extend(shape)
    return other
