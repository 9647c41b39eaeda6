"""Tensors as JSON values, both ways, and no number changed on the way (Open Inference Protocol 2, "Tensor Data").

Into a tensor: whole numbers must be whole and within the datatype's range, true and false are BOOL's alone, strings are
BYTES' alone (as UTF-8), and floating-point datatypes take the nearest value that they have, FP16 too; a number beyond
their range is refused. Data is one flat array, or nested exactly as the shape says.

Out of one: not-a-number and infinity are not JSON, and bytes that are not UTF-8 are no string: such a tensor can only
be had in binary form, and the error says so. Pure; every refusal names the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import RequestError, invalid
from engine.tensor_facts import Datatype
from engine.tensors.datatypes import DTYPES

_WORDS: dict[type, str] = {str: "a string", dict: "an object", list: "an array", type(None): "null"}


def to_array(data: Any, datatype: Datatype, shape: Sequence[int], tensor: str) -> NDArray[Any]:
    """The array that ``data`` stands for, of this datatype and shape, whose axes are all at least 1 long. tensor: what
    an error calls it, such as ``the input 'x'``. Raises RequestError (400)."""
    if not isinstance(data, list):
        raise invalid(f"{tensor}: data must be an array")
    values = _flat(data, shape, tensor)
    dtype = DTYPES[datatype]
    if datatype == "BYTES":
        _expect({str}, "strings", values, tensor)
        array = np.empty(len(values), dtype)
        array[:] = [value.encode() for value in values]
    elif datatype == "BOOL":
        _expect({bool}, "true and false", values, tensor)
        array = np.array(values, dtype)
    elif dtype.kind == "f":
        _expect({int, float}, "numbers", values, tensor)
        array = _floats(values, datatype, tensor)
    else:
        _expect({int}, "whole numbers without fraction or exponent", values, tensor)
        limits = np.iinfo(dtype)
        if min(values) < limits.min or max(values) > limits.max:
            raise invalid(f"{tensor}: data has a number outside {datatype}, {limits.min} to {limits.max}")
        array = np.array(values, dtype)
    return array.reshape(shape)


def from_array(array: NDArray[Any], datatype: Datatype, name: str) -> list[str] | NDArray[Any]:
    """The elements of the output ``name`` in row-major order, as orjson writes them. Raises RequestError (400): ask for
    it in binary form."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if datatype == "BYTES":
        try:
            return [value if isinstance(value, str) else value.decode() for value in flat]
        except UnicodeDecodeError:
            raise _only_binary(name, "bytes that are not UTF-8") from None
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        raise _only_binary(name, "NaN or infinity")
    return flat


def _floats(values: list[int | float], datatype: Datatype, tensor: str) -> NDArray[Any]:
    """Each as the nearest value of the datatype (IEEE 754, ties to even)."""
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, np.float64).astype(DTYPES[datatype])
    except OverflowError:  # a whole number beyond FP64
        array = np.array([math.inf])
    if not np.isfinite(array).all():
        raise invalid(f"{tensor}: data has a number beyond the largest of {datatype}")
    return array


def _flat(data: list[Any], shape: Sequence[int], tensor: str) -> list[Any]:
    """The elements, as many as the shape has."""
    wanted = math.prod(shape)
    if shape and data and isinstance(data[0], list):
        return _unnested(data, shape, tensor)
    if len(data) != wanted:
        raise invalid(f"{tensor}: data has {len(data)} elements, and the shape {list(shape)} has {wanted}")
    return data


def _unnested(data: list[Any], shape: Sequence[int], tensor: str) -> list[Any]:
    fits = len(data) == shape[0]
    for length in shape[1:]:
        fits = fits and set(map(type, data)) == {list} and set(map(len, data)) == {length}
        if fits:
            data = list(chain.from_iterable(data))
    if not fits:
        raise invalid(f"{tensor}: data is nested otherwise than the shape {list(shape)}; nest it so, or send it flat")
    return data


def _expect(types: set[type], what: str, values: list[Any], tensor: str) -> None:
    """Refuse values of any other type; true is not 1 here."""
    if set(map(type, values)) <= types:
        return
    index, value = next((index, value) for index, value in enumerate(values) if type(value) not in types)
    found = _WORDS.get(type(value)) or str(value).lower()
    raise invalid(f"{tensor}: data must be {what}, and element {index} is {found}")


def _only_binary(name: str, what: str) -> RequestError:
    return invalid(f'the output {name!r} holds {what}, which JSON cannot carry; ask for it with "binary_data": true')
