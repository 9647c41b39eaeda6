"""An ONNX file that nobody vouches for, read within bounds: its graph, and where the data of its weights lies.

Owns what a file may refer to: data beside it, in its own folder, within the bounds of the files that are there. Runs
nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto

from engine.model_folder import ModelError

_LIMIT_BYTES = (1 << 31) - 1  # of a protobuf message; larger models keep their weights beside it
_BITS: dict[int, int] = {
    TensorProto.FLOAT: 32,
    TensorProto.UINT8: 8,
    TensorProto.INT8: 8,
    TensorProto.UINT16: 16,
    TensorProto.INT16: 16,
    TensorProto.INT32: 32,
    TensorProto.INT64: 64,
    TensorProto.BOOL: 8,
    TensorProto.FLOAT16: 16,
    TensorProto.DOUBLE: 64,
    TensorProto.UINT32: 32,
    TensorProto.UINT64: 64,
    TensorProto.BFLOAT16: 16,
    TensorProto.UINT4: 4,
    TensorProto.INT4: 4,
}


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the data of a tensor lies."""

    file: Path
    offset: int
    length: int  # bytes


def read_onnx(path: Path) -> onnx.ModelProto:
    """The model without the data that lies beside the file. Raises ModelError."""
    try:
        if (size := path.stat().st_size) > _LIMIT_BYTES:
            raise ModelError(
                f"{path}: has {size >> 20} MiB, of a graph at most 2047; keep its weights as external data"
            )
        model = onnx.ModelProto()
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}; check the path") from error
    except DecodeError as error:
        raise ModelError(f"{path}: is not an ONNX file ({error}); export the model again") from error
    if not model.graph.node or not model.graph.output:
        raise ModelError(f"{path}: has no graph that gives anything; export the model again")
    return model


def tensor_bytes(tensor: TensorProto) -> int:
    """What the data of a tensor take. ValueError for sizes that are none and for types that are not known here."""
    if tensor.data_type not in _BITS or any(length < 0 for length in tensor.dims):
        raise ValueError(f"the tensor {tensor.name!r} has a type or a shape that is not known")
    return int(-(-math.prod(tensor.dims) * _BITS[tensor.data_type] // 8))


def external(model: onnx.ModelProto, path: Path) -> dict[str, Extent]:
    """Where the data of those weights of the graph lies that are not in the file, by name.

    Raises ModelError when it lies outside the file's folder or beyond the end of a file, when more is referred to than
    is there, and for external data anywhere else than in the weights of the main graph.
    """
    for tensor in _tensors_elsewhere(model):
        if _is_external(tensor):
            raise ModelError(f"{path}: the data of {tensor.name!r} lies in another file, which only weights may")
    found = {tensor.name: _extent(tensor, path) for tensor in model.graph.initializer if _is_external(tensor)}
    distinct = {(extent.file, extent.offset, extent.length) for extent in found.values()}
    there = sum(file.stat().st_size for file in {extent.file for extent in found.values()})
    if sum(length for _, _, length in distinct) > there:
        raise ModelError(f"{path}: refers to more data than lies beside it; export the model again")
    return found


def _extent(tensor: TensorProto, path: Path) -> Extent:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    folder = path.resolve().parent
    file = Path(os.path.realpath(folder / location))
    if not location or Path(location).is_absolute() or not file.is_relative_to(folder):
        raise ModelError(f"{path}: the data of {tensor.name!r} would lie in {location!r}, outside the model's folder")
    try:
        offset, length = int(entries.get("offset", 0)), tensor_bytes(tensor)
        said = int(entries.get("length", length))
    except ValueError as error:
        raise ModelError(f"{path}: the external data of {tensor.name!r} is damaged ({error})") from error
    if not file.is_file():
        raise ModelError(f"{path}: the data of {tensor.name!r} should lie in {location}, which is not there")
    if said != length or offset < 0 or offset + length > file.stat().st_size:
        raise ModelError(f"{path}: the data of {tensor.name!r} does not fit {location}; copy the whole model again")
    return Extent(file, offset, length)


def _is_external(tensor: TensorProto) -> bool:
    return bool(tensor.data_location == TensorProto.EXTERNAL or tensor.external_data)


def _tensors_elsewhere(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """All tensors but the weights of the main graph: in attributes, subgraphs, functions and wherever else."""
    waiting = [value for field, value in model.graph.ListFields() if field.name != "initializer"]
    waiting += [value for field, value in model.ListFields() if field.name != "graph"]
    while waiting:
        here = waiting.pop()
        if isinstance(here, TensorProto):
            yield here
        elif isinstance(here, Message):
            waiting += [value for _, value in here.ListFields()]
        elif not isinstance(here, str | bytes | int | float):
            waiting += here
