"""What an adapter would do to every request, done inside the model's graph, once for the whole batch.

Pure: a graph in, a graph out. An image arrives as bytes of colour in its own input beside the model's; casting,
normalising and laying it out are nodes, and so are softmax and the best classes behind. Weights are not touched and
need not be loaded.

The model's own input stays, for those who send tensors: what the model reads is the rows of images followed by the
plain rows, and a run brings one of the two and no rows of the other (``empty_feeds``). So one session holds the weights
once and nothing is decided inside the graph. ONNX Runtime passes over what has no rows, whatever its width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from engine.manifest import Manifest
from engine.tensor_facts import CLASSES, SCORES, ClassifyFacts, ImageFacts

_PREFIX = "headrace."
_OLDEST_OPSET = 11  # TopK and Gather as they are used here
_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16}


def fuse(model: onnx.ModelProto, manifest: Manifest) -> onnx.ModelProto:
    """A copy of the graph that takes images and gives classes as the manifest's adapter and classify say.

    Raises ValueError when the graph has not what they speak of, or its operator set is older than 11.
    """
    image = manifest.adapter.image if manifest.adapter else None
    if image is None and manifest.classify is None:
        return model
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset < _OLDEST_OPSET:
        raise ValueError(f"the graph is of operator set {opset}; an adapter needs {_OLDEST_OPSET} or newer")
    fused = onnx.ModelProto()
    fused.CopyFrom(model)
    if image is not None:
        _take_images(fused.graph, image)
    if manifest.classify is not None:
        _give_classes(fused.graph, manifest.classify)
    return fused


def empty_feeds(manifest: Manifest) -> dict[str, NDArray[Any]]:
    """What a request that brings tensors feeds to the fused graph beside them: no images."""
    image = manifest.adapter.image if manifest.adapter else None
    if image is None:
        return {}
    width, height = image.size
    return {image.feed: np.empty((0, height, width, image.channels), np.uint8)}


def _take_images(graph: onnx.GraphProto, facts: ImageFacts) -> None:
    """Put the image input and what makes rows of it in front of whatever reads the plain input."""
    plain = next((value for value in graph.input if value.name == facts.input), None)
    if plain is None:
        raise ValueError(f"the graph has no input {facts.input!r}")
    (width, height), channels = facts.size, facts.channels
    by_line = facts.layout == "nhwc" and not facts.widths
    shape = _image_shape(plain, facts)
    type_ = plain.type.tensor_type.elem_type
    if type_ not in _FLOATS | {TensorProto.UINT8}:
        raise ValueError(f"the input {facts.input!r} holds neither floats nor uint8, so it takes no images")
    if type_ == TensorProto.UINT8 and (facts.scale != 1 or any(facts.mean) or set(facts.std) - {1.0}):
        raise ValueError(f"the input {facts.input!r} holds uint8: leave scale, mean and std out")

    rows = _PREFIX + "rows"
    _rename_reads(graph, facts.input, rows)
    name = facts.feed
    before = _Nodes(graph)
    value = name
    if facts.layout == "nchw":  # while a value is one byte: moving floats takes four times as long
        value = before.add("Transpose", [value], perm=[0, 3, 1, 2])
    elif (
        by_line and type_ != TensorProto.UINT8
    ):  # a whole line at a time: three values at a time take five times as long
        value = before.add("Reshape", [value, before.constant(np.array([0, 0, width * channels]))])
    if type_ != TensorProto.UINT8:
        value = before.normalize(value, facts, type_)
        if by_line:
            value = before.add("Reshape", [value, before.constant(np.array([0, 0, width, channels]))])
    before.nodes.append(helper.make_node("Concat", [value, facts.input], [rows], _PREFIX + "rows", axis=0))
    free = f"{name}.width" if facts.widths else width
    image = helper.make_tensor_value_info(name, TensorProto.UINT8, [f"{name}.rows", height, free, channels])
    plain.type.tensor_type.shape.CopyFrom(shape)
    graph.input.append(image)
    own = list(graph.node)
    del graph.node[:]
    graph.node.extend([*before.nodes, *own])


def _image_shape(plain: onnx.ValueInfoProto, facts: ImageFacts) -> onnx.TensorShapeProto:
    """The plain input's shape with an axis of rows of its own. Raises ValueError when no such image fits into it."""
    (width, height), channels = (-1 if facts.widths else facts.size[0], facts.size[1]), facts.channels
    wanted = [height, width, channels] if facts.layout == "nhwc" else [channels, height, width]
    dims = plain.type.tensor_type.shape.dim
    given = [dim.dim_value or -1 for dim in dims]
    fits = len(given) == 4 and all(size in (-1, want) for size, want in zip(given[1:], wanted, strict=True))
    if not fits or given[0] != -1:
        raise ValueError(
            f"the input {facts.input!r} is of shape {_shown(given)}; the adapter makes {_shown([-1, *wanted])}"
        )
    shape = onnx.TensorShapeProto()
    shape.CopyFrom(plain.type.tensor_type.shape)
    shape.dim[0].dim_param = f"{facts.input}.rows"
    return shape


def _shown(shape: Sequence[int]) -> str:
    return f"[{', '.join('any' if size == -1 else str(size) for size in shape)}]"


def _rename_reads(graph: onnx.GraphProto, name: str, new: str) -> None:
    """Let every node that reads ``name`` read ``new``, in nested graphs as well, and an output too."""
    for node in graph.node:
        for index, read in enumerate(node.input):
            if read == name:
                node.input[index] = new
        for attribute in node.attribute:
            for nested in (attribute.g, *attribute.graphs):
                if nested.node and name not in {value.name for value in nested.input}:
                    _rename_reads(nested, name, new)
    if any(value.name == name for value in graph.output):
        raise ValueError(f"the graph gives its input {name!r} back as an output of the same name")


def _give_classes(graph: onnx.GraphProto, facts: ClassifyFacts) -> None:
    """Put softmax, where it is asked for, and the best classes behind an output."""
    output = next((value for value in graph.output if value.name == facts.output), None)
    if output is None:
        raise ValueError(f"the graph has no output {facts.output!r}")
    type_ = output.type.tensor_type
    dims = [dim.dim_value or -1 for dim in type_.shape.dim]
    if len(dims) != 2 or dims[1] < 1 or type_.elem_type not in _FLOATS:
        raise ValueError(
            f"the output {facts.output!r} must be of floats [rows, classes], with a known number of classes"
        )
    behind = _Nodes(graph)
    value = facts.output
    if type_.elem_type != TensorProto.FLOAT:
        value = behind.add("Cast", [value], to=TensorProto.FLOAT)
    if facts.softmax:
        value = behind.add("Softmax", [value], axis=1)
    best = behind.constant(np.array([min(facts.top_k, dims[1])]))
    behind.nodes.append(helper.make_node("TopK", [value, best], [SCORES, CLASSES], _PREFIX + "top_k", axis=1))
    graph.node.extend(behind.nodes)
    rows = output.type.tensor_type.shape.dim[0].dim_param or f"{facts.output}.rows"
    shape: Sequence[str | int] = [rows, min(facts.top_k, dims[1])]
    graph.output.append(helper.make_tensor_value_info(SCORES, TensorProto.FLOAT, shape))
    graph.output.append(helper.make_tensor_value_info(CLASSES, TensorProto.INT64, shape))


class _Nodes:
    """Nodes in the making, and constants that go into the graph's initializers at once."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.nodes: list[NodeProto] = []
        self._graph = graph

    def add(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """The output of one more node."""
        name = f"{_PREFIX}{operator.lower()}.{len(self._graph.node) + len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def constant(self, value: NDArray[Any]) -> str:
        """The name under which the graph holds the value."""
        name = f"{_PREFIX}constant.{len(self._graph.initializer)}"
        self._graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def normalize(self, value: str, facts: ImageFacts, type_: int) -> str:
        """(value * scale - mean) / std in float32, then the input's type."""
        std = np.array(facts.std or [1.0] * facts.channels, np.float64)
        factors = facts.scale / std
        shifts = -np.array(facts.mean or [0.0] * facts.channels, np.float64) / std
        value = self.add("Cast", [value], to=TensorProto.FLOAT)
        for operator, by_channel, neutral in (("Mul", factors, 1.0), ("Add", shifts, 0.0)):
            if (by_channel == neutral).all():
                continue
            if facts.layout == "nchw":
                spread = by_channel.reshape(-1, 1, 1)
            else:
                spread = by_channel if facts.widths else np.tile(by_channel, facts.size[0])
            value = self.add(operator, [value, self.constant(spread.astype(np.float32))])
        return value if type_ == TensorProto.FLOAT else self.add("Cast", [value], to=type_)
