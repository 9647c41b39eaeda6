"""The answer to an inference request: the outputs that were asked for, as JSON and in binary form.

Binary data follows the JSON in the order of the outputs and stays where it lies in the arrays. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from numpy.typing import NDArray

from engine.errors import invalid
from engine.tensor_facts import TensorFacts
from engine.wire import oip_binary, oip_json
from engine.wire.oip_request import InferRequest


class Wanted(NamedTuple):
    """An output as it is to be sent."""

    tensor: TensorFacts
    binary: bool


def choose(request: InferRequest, outputs: Sequence[TensorFacts]) -> list[Wanted]:
    """The outputs that the request asks for; without a word all of them. Raises RequestError (400)."""
    if request.outputs is None:
        return [Wanted(tensor, request.all_binary) for tensor in outputs]
    there = {tensor.name: tensor for tensor in outputs}
    if unknown := next((name for name in request.outputs if name not in there), None):
        raise invalid(f"the model has no output {unknown!r}; it has: {', '.join(there)}")
    return [Wanted(there[name], binary) for name, binary in request.outputs.items()]


def render(
    model: str, version: str, request_id: str | None, wanted: Sequence[Wanted], arrays: Mapping[str, NDArray[Any]]
) -> tuple[bytes, list[memoryview]]:
    """The JSON and the binary data. Raises RequestError (400) for an output that JSON cannot carry."""
    told: list[dict[str, Any]] = []
    binary: list[memoryview] = []
    for each in wanted:
        name, datatype = each.tensor.name, each.tensor.datatype
        array = arrays[name]
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
        if each.binary:
            binary.append(oip_binary.from_array(array, datatype))
            output["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            output["data"] = oip_json.from_array(array, datatype, name)
        told.append(output)
    answer: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": told}
    if request_id is not None:
        answer["id"] = request_id
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), binary
