"""What the Open Inference Protocol tells of a server and its models: names, versions, tensors. Pure.

A model that was made for another endpoint is shown as well: one that embeds takes BYTES ``text`` and gives FP32
``embedding``; one that chats takes no tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.manifest import Manifest
from engine.tensor_facts import TensorFacts, TensorModelFacts

EXTENSIONS = ("binary_tensor_data", "model_repository", "schedule_policy", "statistics")
TEXT, EMBEDDING = "text", "embedding"


def describe_server(version: str) -> dict[str, Any]:
    """The answer of ``GET /v2``."""
    return {"name": "headrace", "version": version, "extensions": EXTENSIONS}


def describe_model(name: str, version: str, kind: str, facts: TensorModelFacts | None) -> dict[str, Any]:
    """The answer of ``GET /v2/models/{name}``. -1 in a shape stands for any length, that of the batch too."""
    return {
        "name": name,
        "versions": [version],
        "platform": "onnxruntime_onnx" if kind == "tensor" else f"headrace_{kind}",
        "inputs": _tensors(facts.inputs if facts else ()),
        "outputs": _tensors(facts.outputs if facts else ()),
    }


def facts_of(manifest: Manifest | None) -> TensorModelFacts | None:
    """The tensors that a model of this manifest takes and gives; None: it takes none."""
    if manifest is None:
        return None
    if manifest.embedding is not None:
        return embedding_facts(manifest.embedding.dimensions)
    return manifest.tensors


def embedding_facts(dimensions: int) -> TensorModelFacts:
    """An embedding model as one of tensors: a vector for each text."""
    return TensorModelFacts(
        inputs=(TensorFacts(name=TEXT, datatype="BYTES", shape=(-1,)),),
        outputs=(TensorFacts(name=EMBEDDING, datatype="FP32", shape=(-1, dimensions)),),
    )


def _tensors(tensors: Iterable[TensorFacts]) -> list[dict[str, Any]]:
    return [{"name": each.name, "datatype": each.datatype, "shape": each.shape} for each in tensors]
