"""The JSON of an inference request: bytes to a dict of plain values, fast where tensors are large, or a refusal.

orjson reads it, with its own bound on nesting; of what is used afterwards only tensors may be nested, by as many levels
as their shapes have axes. It takes a key that stands twice, which two readers would understand in two ways: such a
body has more colons than keys, so whatever does is read again by the strict parser of the other endpoints. What orjson
refuses is looked at once more to name the tensor that holds NaN or a number beyond all range. Pure.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from itertools import chain
from typing import Any

import orjson

from engine.errors import Kind, RequestError, invalid
from engine.wire.body import MAX_BRACKETS, MAX_DEPTH, parse_object
from engine.wire.oip_body import HEADER_LENGTH
from engine.wire.oip_request import Outline, outline

_REMEMBERED_BYTES = 1024


def outline_of(raw: bytes, *, has_binary: bool) -> Outline:
    """What the header in ``raw`` says. has_binary: it is not all of the request. Raises RequestError (400)."""
    return _remembered(raw) if has_binary and len(raw) <= _REMEMBERED_BYTES else outline(parse_header(raw))


@lru_cache(maxsize=256)  # where tensors are in binary form, most of a client's requests have the same header
def _remembered(raw: bytes) -> Outline:
    return outline(parse_header(raw))


def parse_header(raw: bytes) -> dict[str, Any]:
    """The JSON object in ``raw``, UTF-8. Raises RequestError (400)."""
    if raw.count(b"[") + raw.count(b"{") > MAX_BRACKETS:
        message = f"the JSON has more than {MAX_BRACKETS} opening brackets; send tensors flat, or in binary form"
        raise RequestError(Kind.INVALID_JSON, message)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        _name_unfit_tensor(raw)
        return parse_object(raw)
    if isinstance(value, dict) and raw.count(b":") == _num_keys(value):
        return value
    return parse_object(raw)  # for the most part a colon in a string, which is well


def _num_keys(request: dict[str, Any]) -> int:
    """Of all objects that a request should have. With an unexpected one there are more colons."""
    tables = [request]
    for name in ("inputs", "outputs"):
        if isinstance(tensors := request.get(name), list):
            tables += [tensor for tensor in tensors if isinstance(tensor, dict)]
    tables += [parameters for table in tables if isinstance(parameters := table.get("parameters"), dict)]
    return sum(map(len, tables))


def _name_unfit_tensor(raw: bytes) -> None:
    """Raises RequestError when the JSON is one but for the numbers of a tensor, or what follows it."""
    try:
        request, _ = json.JSONDecoder().raw_decode(raw.decode("utf-8", "replace"))  # takes NaN, makes 1e400 infinite
    except (ValueError, RecursionError):
        return
    inputs = request.get("inputs") if isinstance(request, dict) else None
    for tensor in inputs if isinstance(inputs, list) else ():
        if not isinstance(tensor, dict):
            continue
        place = f"the input {str(tensor.get('name'))[:64]!r}"
        parameters = tensor.get("parameters")
        if isinstance(parameters, dict) and "binary_data_size" in parameters:
            message = f"binary_data_size is said, but {HEADER_LENGTH} is not, or is not the length of the JSON"
            raise invalid(f"{place}: {message}; send it")
        if not _finite(tensor.get("data")):
            message = "data holds NaN, Infinity or a number beyond FP64, which JSON cannot carry (RFC 8259, 6)"
            raise invalid(f"{place}: {message}; send it in binary form")


def _finite(data: Any) -> bool:
    level = data if isinstance(data, list) else [data]
    for _ in range(MAX_DEPTH):
        if any(isinstance(value, float) and not math.isfinite(value) for value in level):
            return False
        level = list(chain.from_iterable(value for value in level if isinstance(value, list)))
    return True
