"""The names that datatypes have in the Open Inference Protocol, in numpy and in ONNX, and what an element takes.

BYTES elements are `bytes` objects in arrays of dtype object. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.tensor_facts import Datatype

DTYPES: dict[Datatype, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}

_ONNX_NAMES: dict[str, Datatype] = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
}


def of_onnx(type_: str) -> Datatype | None:
    """The datatype of ``tensor(float)``, as ONNX Runtime writes it, or of ``float``; None: the protocol has no name
    for it."""
    return _ONNX_NAMES.get(type_.removeprefix("tensor(").removesuffix(")"))


def of_numpy(dtype: np.dtype[Any]) -> Datatype | None:
    """The datatype of a numpy dtype; None: the protocol has no name for it."""
    return next((name for name, known in DTYPES.items() if known == dtype), None)


def element_bytes(datatype: Datatype) -> int | None:
    """What an element takes in binary form; None for BYTES, whose elements differ."""
    return None if datatype == "BYTES" else DTYPES[datatype].itemsize
