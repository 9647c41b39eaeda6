"""Rewrites that let ONNX Runtime fold more of a graph than it does by itself. Pure: a graph in, a graph out.

It takes additions and products of constants behind a convolution into the convolution's weights, but no subtractions:
batch normalisation that was exported as ``(x - mean) * factor + bias`` stays three passes over each layer, and keeps it
from the layout in which convolutions are fastest. ``x + (-c)`` is ``x - c`` to the bit. Weights are not read.

Graphs in half precision are left alone: ONNX Runtime cannot negate such a constant while it loads, and would at every
run.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE}


def fold_subtractions(model: onnx.ModelProto) -> int:
    """Make each subtraction of an initializer of floats an addition of its negative, in place. How many there were."""
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer if tensor.data_type in _FLOATS}
    constants -= {value.name for value in graph.input}  # a default, which a run may replace
    negative: dict[str, str] = {}
    num_folded = 0
    for node in graph.node:
        if node.op_type == "Sub" and node.domain == "" and node.input[1] in constants:
            node.op_type = "Add"
            node.input[1] = negative.setdefault(node.input[1], f"headrace.minus.{node.input[1]}")
            num_folded += 1
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend(helper.make_node("Neg", [name], [minus], minus) for name, minus in negative.items())
    graph.node.extend(nodes)
    return num_folded
