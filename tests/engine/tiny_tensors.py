"""Tiny graphs as tensor models on disk."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engine import model_folder
from engine.manifest import Manifest, Source, TensorFacts, TensorModelFacts
from engine.model_folder import ModelFolder
from engine.tensors.datatypes import of_onnx

Info = tuple[str, int, Sequence[Any]]  # name, element type, shape

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) / 8


def graph_of(
    inputs: Sequence[Info], outputs: Sequence[Info], nodes: Sequence[onnx.NodeProto], **initializers: np.ndarray
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info(*info) for info in inputs],
        [helper.make_tensor_value_info(*info) for info in outputs],
        [numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def linear(rows: Any = "n") -> onnx.ModelProto:
    """y = x @ WEIGHTS, and the sums of x's rows; x: float32[rows, 4]."""
    return graph_of(
        [("x", TensorProto.FLOAT, [rows, 4])],
        [("y", TensorProto.FLOAT, [rows, 3]), ("sum", TensorProto.FLOAT, [rows])],
        [
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            helper.make_node("ReduceSum", ["x", "one"], ["sum"], keepdims=0),
        ],
        w=WEIGHTS,
        one=np.array([1]),
    )


def identity(element: int = TensorProto.FLOAT, shape: Sequence[Any] = ("n", "length")) -> onnx.ModelProto:
    """y = x."""
    node = helper.make_node("Identity", ["x"], ["y"])
    return graph_of([("x", element, shape)], [("y", element, shape)], [node])


def facts_of(model: onnx.ModelProto, *, batched: bool = True) -> TensorModelFacts:
    """What the graph itself says of its inputs and outputs."""

    def read(info: onnx.ValueInfoProto) -> TensorFacts:
        tensor = info.type.tensor_type
        datatype = of_onnx(TensorProto.DataType.Name(tensor.elem_type).lower())
        assert datatype is not None
        shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)
        return TensorFacts(name=info.name, datatype=datatype, shape=shape)

    return TensorModelFacts(
        inputs=tuple(map(read, model.graph.input)), outputs=tuple(map(read, model.graph.output)), batched=batched
    )


def write_folder(
    path: Path,
    model: onnx.ModelProto,
    facts: TensorModelFacts | None = None,
    *,
    fill: Callable[[Path], None] = lambda directory: None,
    **tables: Any,
) -> ModelFolder:
    """A model folder with this graph. fill: adds files; tables: of the manifest."""
    manifest = Manifest(
        name=path.name,
        kind="tensor",
        architecture="onnx",
        created="2030-01-01T00:00:00+00:00",
        source=Source(file="tiny.onnx", sha256="0" * 64),
        tensors=facts or facts_of(model),
        **tables,
    )
    with model_folder.staged(path) as directory:
        onnx.save_model(model, directory / model_folder.GRAPH)
        fill(directory)
        model_folder.seal(directory, manifest)
    return model_folder.read(path)
