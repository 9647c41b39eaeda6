"""An inference request of the Open Inference Protocol: a JSON header and binary data to tensors, or a 400.

Owns the fields of the header and how binary data is dealt out: in the order of the inputs, each exactly as much as it
says, all of it (Triton's binary tensor data extension). A field that could change the answer and is not known here is
refused by its name. Whether the model takes these tensors is for the model to say. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from engine.errors import invalid
from engine.tensor_facts import Datatype
from engine.tensors.datatypes import DTYPES
from engine.wire import oip_binary, oip_json
from engine.wire.openai_fields import integer, present, unsupported

MAX_TENSORS = 256
_MAX_AXES = 16
_MAX_NAME = 255
_KNOWN, _IGNORED = ("id", "inputs", "outputs", "parameters"), ("model_name", "model_version")
_PRIORITIES = {0: None, 1: 0, 2: 1, 3: 2}  # as Triton counts, from 1 on and 0 for the default: to levels
_MAX_TIMEOUT_US = 86_400_000_000


class InferRequest(NamedTuple):
    """A checked request. ``inputs`` may lie in the body's bytes and are not to be written to."""

    inputs: dict[str, NDArray[Any]]
    outputs: Mapping[str, bool] | None  # names in the order wanted, and whether in binary form; None: all outputs
    all_binary: bool  # whether outputs are binary unless it is said of them otherwise
    id: str | None = None
    level: int | None = None  # of priority: 0 high, 1 normal, 2 low; None: not said
    timeout_s: float | None = None
    ignored: tuple[str, ...] = ()  # fields that were accepted and not used


class Input(NamedTuple):
    """A tensor that is in the request."""

    name: str
    datatype: Datatype
    shape: Sequence[int]
    size: int | None  # bytes of binary data; None: ``data`` has it
    data: Any


class Outline(NamedTuple):
    """What a header says: all of a request but its binary data. Many requests have the same."""

    inputs: Sequence[Input]
    request: InferRequest  # without inputs


def parse(header: Mapping[str, Any], binary: memoryview) -> InferRequest:
    """The request in a header and what follows it in the body. Raises RequestError (400)."""
    return fill(outline(header), binary)


def outline(header: Mapping[str, Any]) -> Outline:
    """What the header says. Raises RequestError (400)."""
    fields = present(header)
    ignored = tuple(name for name in _IGNORED if name in fields)
    for name in fields:
        if name not in _KNOWN and name not in _IGNORED:
            raise unsupported(name)
    parameters = _parameters(fields, "the request", ("binary_data_output", "priority", "timeout"))
    all_binary = _flag(parameters, "binary_data_output", "the request") or False
    priority = integer(parameters, "priority", 0, low=0, high=3)
    timeout_us = integer(parameters, "timeout", 0, low=0, high=_MAX_TIMEOUT_US)
    request_id = fields.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise invalid("id must be a string", "id")
    inputs = _inputs(_tables(fields.get("inputs"), "inputs"))
    request = InferRequest(
        {},
        _outputs(_tables(outputs, "outputs"), all_binary) if (outputs := fields.get("outputs", [])) != [] else None,
        all_binary,
        request_id,
        _PRIORITIES[priority],
        timeout_us / 1e6 or None,
        ignored,
    )
    return Outline(inputs, request)


def fill(outline: Outline, binary: memoryview) -> InferRequest:
    """The request with its tensors. Raises RequestError (400)."""
    arrays: dict[str, NDArray[Any]] = {}
    at = 0
    for name, datatype, shape, size, data in outline.inputs:
        place = f"the input {name!r}"
        if size is None:
            arrays[name] = oip_json.to_array(data, datatype, shape, place)
            continue
        if size > len(binary) - at:
            raise invalid(
                f"{place}: binary_data_size is {size}, and {len(binary) - at} bytes of binary data are left for it;"
                " they follow the JSON, whose length Inference-Header-Content-Length says"
            )
        arrays[name] = oip_binary.to_array(binary[at : at + size], datatype, shape, place)
        at += size
    if at != len(binary):
        raise invalid(f"the body has {len(binary)} bytes of binary data, and the inputs take {at}; they must be equal")
    return outline.request._replace(inputs=arrays)


def _inputs(tables: Sequence[Mapping[str, Any]]) -> list[Input]:
    inputs: list[Input] = []
    names: dict[str, None] = {}
    for table in tables:
        name = _name(table, "inputs", names)
        names[name] = None
        place = f"the input {name!r}"
        shape, datatype = _shape(table.get("shape"), place), _datatype(table.get("datatype"), place)
        size = _parameters(table, place, ("binary_data_size",)).get("binary_data_size")
        if (size is None) == ("data" not in table):
            raise invalid(f"{place}: must have data or the parameter binary_data_size, one of them")
        if size is not None and (type(size) is not int or size < 0):
            raise invalid(f"{place}: binary_data_size must be a whole number of bytes")
        inputs.append(Input(name, datatype, shape, size, table.get("data")))
    return inputs


def _outputs(tables: Sequence[Mapping[str, Any]], all_binary: bool) -> dict[str, bool]:
    wanted: dict[str, bool] = {}
    for table in tables:
        name = _name(table, "outputs", wanted)
        place = f"the output {name!r}"
        binary = _flag(_parameters(table, place, ("binary_data",)), "binary_data", place)
        wanted[name] = all_binary if binary is None else binary
    return wanted


def _tables(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(table, dict) for table in value):
        raise invalid(f"{name} must be an array of objects, at least one", name)
    if len(value) > MAX_TENSORS:
        raise invalid(f"{name} has {len(value)} items; at most {MAX_TENSORS} are taken", name)
    return value


def _name(table: Mapping[str, Any], kind: str, known: Mapping[str, Any]) -> str:
    name = table.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
        raise invalid(f"{kind}: each needs a name, a string of 1 to {_MAX_NAME} characters", kind)
    if name in known:
        raise invalid(f"{kind}: {name!r} stands there twice", kind)
    return name


def _shape(value: Any, place: str) -> list[int]:
    if not isinstance(value, list) or not all(type(length) is int and length >= 1 for length in value):
        raise invalid(f"{place}: shape must be an array of whole numbers, each at least 1")
    if len(value) > _MAX_AXES:
        raise invalid(f"{place}: shape has {len(value)} axes; at most {_MAX_AXES} are taken")
    return value


def _datatype(value: Any, place: str) -> Datatype:
    if not isinstance(value, str) or value not in DTYPES:
        raise invalid(f"{place}: datatype must be one of {', '.join(DTYPES)}")
    return value


def _parameters(table: Mapping[str, Any], place: str, known: Sequence[str]) -> dict[str, Any]:
    """The parameters that say something; a 400 for one that is not known."""
    value = table.get("parameters")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(f"{place}: parameters must be an object")
    fields = present(value)
    for name in fields:
        if name not in known:
            raise unsupported(name)
    return fields


def _flag(parameters: Mapping[str, Any], name: str, place: str) -> bool | None:
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{place}: {name} must be true or false")
    return value
