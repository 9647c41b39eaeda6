"""Tensors as bytes, both ways (Triton's binary tensor data extension): little-endian, row by row, without padding.

Elements of BYTES stand behind their lengths, 4 bytes each; BOOL is one byte, 0 or 1. Bytes are not copied where numpy
can look at them as they lie, so whoever keeps a tensor keeps the body that it came in. Pure; every refusal names the
tensor, and nothing is read beyond what the tensor was said to take.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import invalid
from engine.tensor_facts import Datatype
from engine.tensors.datatypes import DTYPES, element_bytes

_LENGTH = struct.Struct("<I")


def to_array(raw: memoryview, datatype: Datatype, shape: Sequence[int], tensor: str) -> NDArray[Any]:
    """The array that all of ``raw`` stands for. tensor: what an error calls it. Raises RequestError (400)."""
    wanted = math.prod(shape)
    itemsize = element_bytes(datatype)
    if itemsize is None:
        return _elements(raw, wanted, tensor).reshape(shape)
    if len(raw) != wanted * itemsize:
        raise invalid(
            f"{tensor}: has {len(raw)} bytes of binary data, and the shape {list(shape)} of {datatype} takes"
            f" {wanted * itemsize}"
        )
    array = np.frombuffer(raw, DTYPES[datatype])
    if datatype == "BOOL" and array.view(np.uint8).max(initial=0) > 1:
        raise invalid(f"{tensor}: a BOOL is one byte, 0 or 1, and there is another one")
    return (array if array.flags.aligned else array.copy()).reshape(shape)


def from_array(array: NDArray[Any], datatype: Datatype) -> memoryview:
    """The bytes of an output; of fixed-size elements those that lie in the array."""
    if datatype == "BYTES":
        pieces: list[bytes] = []
        for value in array.flat:
            element = value.encode() if isinstance(value, str) else value
            pieces += (_LENGTH.pack(len(element)), element)
        return memoryview(b"".join(pieces))
    return np.ascontiguousarray(array, DTYPES[datatype]).reshape(-1).data.cast("B")


def _elements(raw: memoryview, wanted: int, tensor: str) -> NDArray[Any]:
    """BYTES: as many elements as wanted, which end where ``raw`` ends."""
    if len(raw) < wanted * _LENGTH.size:
        raise invalid(f"{tensor}: {len(raw)} bytes of binary data cannot hold the {wanted} elements of its shape")
    array = np.empty(wanted, object)
    at = 0
    for index in range(wanted):
        begins = at + _LENGTH.size
        at = begins + _LENGTH.unpack_from(raw, at)[0] if begins <= len(raw) else begins
        if at > len(raw):
            raise invalid(f"{tensor}: element {index} ends {at - len(raw)} bytes after the binary data does")
        array[index] = bytes(raw[begins:at])
    if at != len(raw):
        raise invalid(f"{tensor}: {len(raw) - at} bytes of binary data are left after the {wanted} elements")
    return array
