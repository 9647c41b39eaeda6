"""The inputs and outputs of a loaded graph, held against what its manifest says of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from engine.manifest import ModelError
from engine.tensor_facts import TensorFacts
from engine.tensors.datatypes import of_onnx


class Described(Protocol):
    """An input or output as ONNX Runtime tells of it."""

    name: str
    type: str  # tensor(float)
    shape: Sequence[Any]  # an axis of no fixed length is a name or None


def check_graph(kind: str, told: Iterable[TensorFacts], there: Sequence[Described], *, all_needed: bool) -> None:
    """Raises ModelError where the manifest tells of a tensor otherwise than the graph has it.

    kind: "input" or "output", for the message. An axis that the graph leaves free may be told as fixed, which narrows
    what is served. all_needed: the graph may have none that is not told of.
    """
    graph = {tensor.name: tensor for tensor in there}
    for tensor in told:
        found = graph.pop(tensor.name, None)
        if found is None:
            raise _differs(
                kind, tensor.name, f"the graph has no such {kind}; it has: {', '.join(t.name for t in there)}"
            )
        if (datatype := of_onnx(found.type)) != tensor.datatype:
            raise _differs(kind, tensor.name, f"is {datatype or found.type} in the graph, not {tensor.datatype}")
        shape = [length if isinstance(length, int) else -1 for length in found.shape]
        if len(shape) != len(tensor.shape) or any(
            length not in (-1, told) for length, told in zip(shape, tensor.shape, strict=True)
        ):
            raise _differs(kind, tensor.name, f"has the shape {shape} in the graph, not {list(tensor.shape)}")
    if graph and all_needed:
        raise _differs(kind, next(iter(graph)), "the graph needs it, and the manifest does not tell of it")


def _differs(kind: str, name: str, how: str) -> ModelError:
    return ModelError(f"tensors: the {kind} {name!r}: {how}; correct model.yaml or import the model again")
