"""Elements gathered one by one in the order in which they lie, as a Reshape: pure graph surgery.

PyTorch's exporter writes a change of strides that moves nothing so: a Reshape to one axis, then a Gather of all its
places. It is the same for the rows that it was exported with, and holds them to that number for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from engine.importers.onnx_file import Extent

_MOST_PLACES = 8 << 20  # more would not be read for it


def unroll(model: onnx.ModelProto, extents: Mapping[str, Extent]) -> list[str]:
    """Make each such pair one Reshape, in place. extents: of the constants that lie beside the file. Their names."""
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    known = {info.name: info.type.tensor_type.shape.dim for info in (*graph.value_info, *graph.input)}
    makers = {name: node for node in graph.node for name in node.output}
    changed: list[str] = []
    for node in graph.node:
        if node.op_type != "Gather" or len(node.input) != 2 or _axis(node) != 0:
            continue
        flat, places = makers.get(node.input[0]), constants.get(node.input[1])
        if flat is None or flat.op_type != "Reshape" or len(flat.input) != 2 or places is None:
            continue
        shape, source = constants.get(flat.input[1]), known.get(flat.input[0])
        if shape is None or source is None or shape.name in extents or tuple(shape.dims) != (1,):
            continue
        size = prod(dim.dim_value for dim in source)
        if not 0 < size <= _MOST_PLACES or numpy_helper.to_array(shape)[0] != -1:
            continue
        if places.data_type != TensorProto.INT64 or prod(places.dims) != size:
            continue
        if not np.array_equal(_read(places, extents), np.arange(size)):
            continue
        target = numpy_helper.from_array(np.array(places.dims, np.int64), f"{node.output[0]}_shape")
        graph.initializer.append(target)
        node.CopyFrom(helper.make_node("Reshape", [flat.input[0], target.name], node.output, node.name))
        changed.append(node.name or node.output[0])
    if changed:
        _drop_unread(graph)
    return changed


def _axis(node: NodeProto) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)


def _read(places: TensorProto, extents: Mapping[str, Extent]) -> NDArray[np.int64]:
    """All of them, one after another."""
    if (extent := extents.get(places.name)) is None:
        return numpy_helper.to_array(places).reshape(-1).astype(np.int64)
    with extent.file.open("rb") as file:
        file.seek(extent.offset)
        return np.frombuffer(file.read(extent.length), "<i8")


def _drop_unread(graph: onnx.GraphProto) -> None:
    """The Reshapes to one axis and the constants that nothing reads now, unless graphs within this one may."""
    if any(attribute.HasField("g") or attribute.graphs for node in graph.node for attribute in node.attribute):
        return
    read = {info.name for info in graph.output}.union(*(node.input for node in graph.node))
    for node in [each for each in graph.node if each.op_type == "Reshape" and read.isdisjoint(each.output)]:
        graph.node.remove(node)
    read = {info.name for info in graph.output}.union(*(node.input for node in graph.node))
    for tensor in [each for each in graph.initializer if each.name not in read]:
        graph.initializer.remove(tensor)
