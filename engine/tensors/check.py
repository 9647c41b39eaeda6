"""Whether the tensors of a request are those that the model takes. Pure.

Every mistake is a 400 that names the tensor, before anything is queued: what has got into a batch can be run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import RequestError, invalid
from engine.tensor_facts import TensorFacts, TensorModelFacts
from engine.tensors.datatypes import DTYPES, of_numpy

Feeds = dict[str, NDArray[Any]]


def check_inputs(facts: TensorModelFacts, inputs: Mapping[str, NDArray[Any]]) -> Feeds:
    """The inputs as the graph takes them: each there, of its datatype and shape, all with one number of rows, at least
    one. BYTES become str. Raises RequestError (400) that names the tensor."""
    num_known = 0
    for tensor in facts.inputs:
        num_known += tensor.name in inputs
    if num_known < len(inputs):
        unknown = next(name for name in inputs if facts.input(name) is None)
        known = ", ".join(tensor.name for tensor in facts.inputs)
        raise invalid(f"the model has no input {unknown!r}; it has: {known}", param=unknown)
    feeds: Feeds = {}
    for tensor in facts.inputs:
        array = inputs.get(tensor.name)
        if array is None:
            raise invalid(f"the input {tensor.name!r} is missing", param=tensor.name)
        _check(tensor, array)
        feeds[tensor.name] = _text(tensor.name, array) if tensor.datatype == "BYTES" else np.asarray(array, order="C")
    if facts.batched:
        check_rows(feeds)
    return feeds


def check_rows(feeds: Mapping[str, NDArray[Any]]) -> int:
    """The number of rows that all inputs have. Raises RequestError (400) when they differ."""
    (first, rows), *others = [(name, len(array)) for name, array in feeds.items()]
    for name, other in others:
        if other != rows:
            raise invalid(
                f"the input {name!r} has {other} rows and {first!r} has {rows}; along the first axis all have as many",
                param=name,
            )
    return rows


def fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a shape is one of those that ``wanted`` stands for, where -1 is any length but 0."""
    return len(shape) == len(wanted) and all(
        length == want or (want == -1 and length > 0) for length, want in zip(shape, wanted, strict=True)
    )


def _check(tensor: TensorFacts, array: NDArray[Any]) -> None:
    if array.dtype != DTYPES[tensor.datatype]:
        raise _mismatch(tensor, f"of datatype {of_numpy(array.dtype) or array.dtype}", tensor.datatype)
    if not fits(array.shape, tensor.shape):
        raise _mismatch(tensor, f"of shape {list(array.shape)}", f"{list(tensor.shape)} (-1: any length but 0)")


def _mismatch(tensor: TensorFacts, what: str, wanted: str) -> RequestError:
    return invalid(f"the input {tensor.name!r} is {what}; the model takes {wanted}", param=tensor.name)


def _text(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """ONNX strings are text: bytes that are not UTF-8 cannot be given to a graph."""
    texts = np.empty(array.size, object)
    for index, element in enumerate(array.flat):
        try:
            texts[index] = element if isinstance(element, str) else element.decode()
        except (UnicodeDecodeError, AttributeError):
            raise invalid(f"the input {name!r}: element {index} is not UTF-8 text", param=name) from None
    return texts.reshape(array.shape)
