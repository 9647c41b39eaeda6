"""Which form of an ONNX graph is served: with any number of rows where that is safe, as it is otherwise.

Owns the order in which forms are tried, and what is said of the one that is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx

from engine.importers import batch_axis
from engine.importers.onnx_signature import inputs_of, read_tensors
from engine.importers.trial import Verdict, try_graph
from engine.model_folder import ModelError
from engine.tensor_facts import TensorModelFacts
from engine.tensors.forms import has_free_axes

Shapes = Mapping[str, tuple[int, ...]]


def settle(
    model: onnx.ModelProto, graph: Path, shapes: Shapes, weights_bytes: int
) -> tuple[TensorModelFacts, tuple[str, ...]]:
    """Write to ``graph`` the form of the model that is to be served; its facts, and what was or could not be changed.

    shapes: of inputs and outputs, narrower than the graph has them. Raises ModelError when no form runs.
    """
    plain = _facts(model, shapes)
    refused = "its inputs have no axis of rows in common"
    for candidate, changes in _candidates(model, batch_axis.fixed_rows(plain.inputs)):
        facts = _facts(candidate, shapes)
        if any(tensor.shape[:1] != (-1,) for tensor in (*facts.inputs, *facts.outputs)):
            refused = "its outputs have no axis of rows"
            continue
        facts = facts.model_copy(update={"batched": True})
        verdict = _try(candidate, graph, facts, weights_bytes)
        if verdict.problem is None:
            return _with_example(facts, verdict), changes
        refused = verdict.problem
    verdict = _try(model, graph, plain, weights_bytes)
    if verdict.problem is not None:
        raise ModelError(f"{verdict.problem}; if free axes have usual lengths, tell them with --shape")
    return _with_example(plain, verdict), (f"left as it is, so requests do not share runs: {refused}",)


def _candidates(model: onnx.ModelProto, rows: int | None) -> Iterator[tuple[onnx.ModelProto, tuple[str, ...]]]:
    """Forms that may take any number of rows, the least changed first, with what was changed."""
    if rows is None:
        return
    if not rows:
        yield model, ()
    freed = batch_axis.free(model, rows or 1)
    said = f"the first axis of all inputs and outputs may have any length{f' instead of {rows}' if rows else ''}"
    yield freed, (said,)
    if names := batch_axis.free_reshapes(freed, rows or 1):
        yield freed, (said, f"Reshape to as many rows as there are instead of {rows or 1}: {', '.join(names)}")


def _try(model: onnx.ModelProto, graph: Path, facts: TensorModelFacts, weights_bytes: int) -> Verdict:
    graph.write_bytes(model.SerializeToString())
    return try_graph(graph, facts, weights_bytes)


def _facts(model: onnx.ModelProto, shapes: Shapes) -> TensorModelFacts:
    """What the graph says, narrowed to the shapes. Raises ModelError."""
    sides = {
        "inputs": read_tensors(inputs_of(model.graph), "input"),
        "outputs": read_tensors(list(model.graph.output), "output"),
    }
    known = {tensor.name for tensors in sides.values() for tensor in tensors}
    if unknown := sorted(shapes.keys() - known):
        raise ModelError(f"there is no input or output {unknown[0]!r}; there is: {', '.join(sorted(known))}")
    narrowed: dict[str, Any] = {
        side: tuple(tensor.model_copy(update={"shape": shapes.get(tensor.name, tensor.shape)}) for tensor in tensors)
        for side, tensors in sides.items()
    }
    try:
        return TensorModelFacts(**narrowed, batched=False)
    except ValueError as error:
        raise ModelError(f"its inputs and outputs cannot be served ({error})") from error


def _with_example(facts: TensorModelFacts, verdict: Verdict) -> TensorModelFacts:
    """The row that ran, where rows may differ in shape."""
    return facts.model_copy(update={"example": verdict.example}) if has_free_axes(facts) else facts
