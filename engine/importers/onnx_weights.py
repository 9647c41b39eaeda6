"""The weights of an ONNX graph moved to the weights file of a model folder, where they can be mapped.

Small ones stay in the graph: shapes and the like are needed there when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from engine.importers.onnx_file import Extent, tensor_bytes
from engine.importers.weights import PAGE_BYTES, WeightsFile
from engine.model_folder import ModelError

Progress = Callable[[str, int, int], None]
_PIECE_BYTES = 16 << 20
_PLAIN = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.INT32}


def store(model: onnx.ModelProto, extents: Mapping[str, Extent], weights_file: WeightsFile, progress: Progress) -> int:
    """Move what is larger than a page, in place; what lay beside the file and is smaller comes into the graph.

    extents: of the weights that lay beside the file. The bytes that were moved. Raises ModelError.
    """
    weights = model.graph.initializer
    movable = [_movable(tensor, extents) for tensor in weights]
    total, done = sum(movable), 0
    for tensor, size in zip(weights, movable, strict=True):
        pieces = _read(extents[tensor.name]) if tensor.name in extents else _raw(tensor)
        if size > PAGE_BYTES:
            try:
                stored = weights_file.append(tensor.name, (size,), pieces)
            except ValueError as error:
                raise ModelError(f"a weight is damaged ({error}); export the model again") from error
            del stored.dims[:]
            stored.dims.extend(tensor.dims)
            stored.data_type = tensor.data_type
            tensor.CopyFrom(stored)
            done += size
            progress("write", done, total)
        elif tensor.name in extents:
            tensor.raw_data = b"".join(piece.tobytes() for piece in pieces)
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
    return done


def _movable(tensor: TensorProto, extents: Mapping[str, Extent]) -> int:
    """The bytes of a tensor that may be moved as they are; 0: it stays in the graph."""
    if tensor.name in extents:
        return extents[tensor.name].length
    return tensor_bytes(tensor) if tensor.HasField("raw_data") or tensor.data_type in _PLAIN else 0


def _raw(tensor: TensorProto) -> Iterator[NDArray[Any]]:
    data = tensor.raw_data if tensor.HasField("raw_data") else numpy_helper.to_array(tensor).tobytes()
    yield np.frombuffer(data, np.uint8)


def _read(extent: Extent) -> Iterator[NDArray[Any]]:
    with extent.file.open("rb") as file:
        file.seek(extent.offset)
        left = extent.length
        while left:
            piece = file.read(min(left, _PIECE_BYTES))
            if not piece:
                raise ModelError(f"{extent.file}: ended while it was read; copy the whole model again")
            left -= len(piece)
            yield np.frombuffer(piece, np.uint8)
