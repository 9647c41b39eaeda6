"""What an ONNX graph says of its inputs and outputs. Pure."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from engine.model_folder import ModelError
from engine.tensor_facts import TensorFacts
from engine.tensors.datatypes import of_onnx


def inputs_of(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that somebody must bring: old files list the weights among them."""
    weights = {tensor.name for tensor in graph.initializer}
    return [info for info in graph.input if info.name not in weights]


def read_tensors(infos: list[onnx.ValueInfoProto], kind: str) -> tuple[TensorFacts, ...]:
    """The names, datatypes and shapes of inputs or outputs. kind: for messages. Raises ModelError."""
    return tuple(_read(info, kind) for info in infos)


def _read(info: onnx.ValueInfoProto, kind: str) -> TensorFacts:
    tensor = info.type.tensor_type
    type_ = TensorProto.DataType.Name(tensor.elem_type).lower() if info.type.HasField("tensor_type") else "no tensor"
    datatype = of_onnx(type_)
    if datatype is None:
        raise ModelError(f"the {kind} {info.name!r} is {type_}, which cannot be served; cast it in the graph")
    if not tensor.HasField("shape"):
        raise ModelError(f"the {kind} {info.name!r} has no shape; export the model with one, free axes may have names")
    shape = tuple(dim.dim_value if dim.dim_value > 0 else -1 for dim in tensor.shape.dim)
    try:
        return TensorFacts(name=info.name, datatype=datatype, shape=shape)
    except ValueError as error:
        raise ModelError(f"the {kind} {info.name!r} cannot be served ({error})") from error
