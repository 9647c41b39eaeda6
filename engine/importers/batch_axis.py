"""The axis of rows of an ONNX graph: whether it has one, and the graph with that axis made free.

Pure graph surgery. Nothing here is safe by itself: whoever changes a graph runs it (engine/importers/trial.py) and
keeps the change only if rows come out as they do alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from engine.importers.onnx_signature import inputs_of
from engine.tensor_facts import TensorFacts

AXIS = "batch"


def fixed_rows(inputs: Sequence[TensorFacts]) -> int | None:
    """How many rows the inputs must have: 0, any number; None: they have no axis of rows in common."""
    if any(not tensor.shape for tensor in inputs):
        return None
    fixed = {tensor.shape[0] for tensor in inputs} - {-1}
    if len(fixed) > 1:
        return None
    return fixed.pop() if fixed else 0


def free(model: onnx.ModelProto, rows: int) -> onnx.ModelProto:
    """A copy whose inputs and outputs of ``rows`` rows may have any number of them, which is told in no other place."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for info in (*inputs_of(copy.graph), *copy.graph.output):
        dims = info.type.tensor_type.shape.dim
        if dims and (dims[0].dim_value == rows or not dims[0].dim_value):
            dims[0].dim_param = AXIS
    del copy.graph.value_info[:]  # they tell the old number of rows, and the runtime infers them anew
    return copy


def free_reshapes(model: onnx.ModelProto, rows: int) -> list[str]:
    """Change, in place, the Reshapes of what comes from the inputs to a constant shape that begins with ``rows``: to as
    many rows as there are. Their names."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    reached = {info.name for info in inputs_of(model.graph)}
    changed: list[str] = []
    for node in model.graph.node:
        if reached.isdisjoint(node.input):
            continue
        reached.update(node.output)
        if node.op_type != "Reshape" or (shape := constants.get(node.input[1])) is None:
            continue
        lengths = numpy_helper.to_array(shape)
        if lengths.ndim != 1 or lengths.size < 2 or lengths[0] != rows or not lengths.all():
            continue
        del node.attribute[:]  # allowzero, which says what a 0 means: there was none
        name = f"{node.output[0]}_{AXIS}"
        first = 0 if (lengths[1:] == -1).any() else -1  # 0: as many as what is reshaped has
        model.graph.initializer.append(numpy_helper.from_array(np.array([first, *lengths[1:]], np.int64), name))
        node.input[1] = name
        changed.append(node.name or node.output[0])
    return changed
