"""A model of an image and a text, joined of two real ones: Open NSFW's scores and MiniLM's vector from one graph.

Owns the joined folder, over the weights of both. It answers no question; it costs what such a model costs.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, compose, helper, numpy_helper

from engine import model_folder
from engine.manifest import AdapterFacts, Manifest, TensorModelFacts, created_now
from engine.model_folder import GRAPH, WEIGHTS, ModelFolder
from engine.tensor_facts import ImageFacts, TensorFacts, TextFacts

IMAGE, IDS, MASK, SCORES, VECTOR = "picture", "ids", "mask", "scores", "vector"
MAX_TOKENS, BUCKETS = 128, (16, 32, 64, 128)
_SHAPES = {"image": (-1, 224, 224, 3), "ids": (-1, -1), "scores": (-1, 2), "vector": (-1, 384)}
_OPSET = 21


def join(image: ModelFolder, text: ModelFolder, destination: Path) -> ModelFolder:
    """The folder of both: inputs ``picture``, ``ids`` and ``mask``; outputs ``scores`` and ``vector``."""
    facts = image.manifest.adapter.image if image.manifest.adapter else None
    if facts is None:
        raise SystemExit(f"{image.path}: takes no images")
    tokenizer = text.tokenizer
    with model_folder.staged(destination) as directory:
        onnx.save_model(_graph(_part(image, "image", directory), _part(text, "text", directory)), directory / GRAPH)
        shutil.copy(text.file(tokenizer.file), directory / tokenizer.file)
        manifest = Manifest(
            name=destination.name,
            kind="tensor",
            architecture="onnx",
            created=created_now(),
            source=image.manifest.source,
            tensors=TensorModelFacts(
                inputs=(
                    TensorFacts(name=IMAGE, datatype="FP32", shape=_SHAPES["image"]),
                    TensorFacts(name=IDS, datatype="INT32", shape=_SHAPES["ids"]),
                    TensorFacts(name=MASK, datatype="INT32", shape=_SHAPES["ids"]),
                ),
                outputs=(
                    TensorFacts(name=SCORES, datatype="FP32", shape=_SHAPES["scores"]),
                    TensorFacts(name=VECTOR, datatype="FP32", shape=_SHAPES["vector"]),
                ),
            ),
            adapter=AdapterFacts(
                image=ImageFacts(**{**facts.model_dump(), "input": IMAGE}),
                text=TextFacts(ids=IDS, mask=MASK, max_tokens=MAX_TOKENS, buckets=BUCKETS),
            ),
            tokenizer=tokenizer,
        )
        model_folder.seal(directory, manifest)
    return model_folder.read(destination)


def _graph(image: onnx.ModelProto, text: onnx.ModelProto) -> onnx.ModelProto:
    def info(name: str, type_: int, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(
            name, type_, ["n", *(each if each > 0 else "tokens" for each in shape[1:])]
        )

    front = [
        helper.make_node("Identity", [IMAGE], [image.graph.input[0].name]),
        helper.make_node("Identity", [IDS], ["text/token_ids"]),
        helper.make_node("ReduceSum", [MASK, "last"], ["text/lengths"], keepdims=0),
    ]
    back = [
        helper.make_node("Identity", [image.graph.output[0].name], [SCORES]),
        helper.make_node("Identity", [text.graph.output[0].name], [VECTOR]),
    ]
    graph = helper.make_graph(
        [*front, *image.graph.node, *text.graph.node, *back],
        "joined",
        [
            info(IMAGE, TensorProto.FLOAT, _SHAPES["image"]),
            info(IDS, TensorProto.INT32, _SHAPES["ids"]),
            info(MASK, TensorProto.INT32, _SHAPES["ids"]),
        ],
        [info(SCORES, TensorProto.FLOAT, _SHAPES["scores"]), info(VECTOR, TensorProto.FLOAT, _SHAPES["vector"])],
        [*image.graph.initializer, *text.graph.initializer, numpy_helper.from_array(np.array([1]), "last")],
    )
    others = [entry for entry in text.opset_import if entry.domain]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET), *others], ir_version=10)


def _part(folder: ModelFolder, name: str, directory: Path) -> onnx.ModelProto:
    """A model's graph under names of its own, over a copy of its weights."""
    shutil.copy(folder.file(WEIGHTS), directory / f"{name}.bin")
    model = compose.add_prefix(onnx.load(str(folder.file(GRAPH)), load_external_data=False), f"{name}/")
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = f"{name}.bin"
    nodes = [node for old in model.graph.node for node in _modern(old)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _modern(node: NodeProto) -> list[NodeProto]:
    """The node as operator set 21 has it, of those that these models have: its axes became an input."""
    axes = next((attribute for attribute in node.attribute if attribute.name == "axes"), None)
    if node.op_type != "ReduceMean" or axes is None:
        return [node]
    name = f"{node.output[0]}/axes"
    constant = helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(axes.ints)))
    node.attribute.remove(axes)
    node.input.append(name)
    return [constant, node]
