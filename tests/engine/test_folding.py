"""Subtractions of constants become what ONNX Runtime folds into convolutions, and what comes out stays what it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession, SessionOptions

from engine.folding import fold_subtractions

CHANNELS = 8


def normalised(type_: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Two convolutions, each with batch normalisation as some exporters spell it."""
    random = np.random.default_rng(0)
    dtype = helper.tensor_dtype_to_np_dtype(type_)
    nodes, tensors, source = [], [], "x"
    for layer, channels in enumerate((3, CHANNELS)):
        shapes = {
            "w": (CHANNELS, channels, 3, 3),
            "b": (CHANNELS,),
            **dict.fromkeys(("mean", "factor", "bias"), (1, CHANNELS, 1, 1)),
        }
        tensors += [
            numpy_helper.from_array(random.normal(size=shape).astype(dtype), f"{name}{layer}")
            for name, shape in shapes.items()
        ]
        for operator, reads, gives in (
            ("Conv", [f"w{layer}", f"b{layer}"], "conv"),
            ("Sub", [f"mean{layer}"], "sub"),
            ("Mul", [f"factor{layer}"], "mul"),
            ("Add", [f"bias{layer}"], "add"),
            ("Relu", [], "relu"),
        ):
            nodes.append(helper.make_node(operator, [source, *reads], [f"{gives}{layer}"]))
            source = f"{gives}{layer}"
    return model(nodes, tensors, source, type_, ["n", 3, 12, 12])


def model(
    nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto], output: str, type_: int, shape: list[int | str]
) -> onnx.ModelProto:
    free = [None] * len(shape)
    inputs, outputs = ([helper.make_tensor_value_info(*each)] for each in (("x", type_, shape), (output, type_, free)))
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def run(model: onnx.ModelProto, x: NDArray[np.float32], optimised: Path | None = None) -> NDArray[np.float32]:
    options = SessionOptions()
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    result: NDArray[np.float32] = InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    ).run(None, {"x": x})[0]
    return result


def test_nothing_is_left_of_batch_normalisation_but_convolutions(tmp_path: Path) -> None:
    graph, x = normalised(), np.random.default_rng(1).normal(size=(2, 3, 12, 12)).astype(np.float32)
    wanted = run(graph, x, tmp_path / "before.onnx")
    assert fold_subtractions(graph) == 2
    onnx.checker.check_model(graph, full_check=True)
    np.testing.assert_allclose(run(graph, x, tmp_path / "after.onnx"), wanted, rtol=1e-5, atol=1e-4)
    left = [{node.op_type for node in onnx.load(tmp_path / f"{name}.onnx").graph.node} for name in ("before", "after")]
    assert "Sub" in left[0]  # once ONNX Runtime folds them by itself, this file has no use any more
    assert not left[1] & {"Sub", "Mul", "Add", "Neg"}


@pytest.mark.parametrize("type_", [TensorProto.FLOAT, TensorProto.DOUBLE])
def test_a_subtraction_gives_the_same_bits(type_: int) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(type_)
    special = [0.0, -0.0, 1e-40, 3.5, np.inf, -np.inf, np.nan, 1e30]
    constant = numpy_helper.from_array(np.array(special, dtype), "c")
    graph = model([helper.make_node("Sub", ["x", "c"], ["y"])], [constant], "y", type_, ["n", len(special)])
    x = np.array([np.roll(special, by) for by in range(len(special))], dtype)
    wanted = run(graph, x)
    assert fold_subtractions(graph) == 1
    result = run(graph, x)
    is_number = ~np.isnan(wanted)  # the sign of what is none says nothing
    assert result[is_number].tobytes() == wanted[is_number].tobytes()
    assert np.isnan(result[~is_number]).all()


def test_a_graph_in_half_precision_is_left_alone() -> None:
    assert fold_subtractions(normalised(TensorProto.FLOAT16)) == 0


@pytest.mark.parametrize("type_", [TensorProto.FLOAT, TensorProto.DOUBLE])
def test_no_run_negates_anything(type_: int, tmp_path: Path) -> None:
    constant = numpy_helper.from_array(np.ones(3, helper.tensor_dtype_to_np_dtype(type_)), "c")
    graph = model([helper.make_node("Sub", ["x", "c"], ["y"])], [constant], "y", type_, ["n", 3])
    assert fold_subtractions(graph) == 1
    run(graph, np.ones((1, 3), helper.tensor_dtype_to_np_dtype(type_)), tmp_path / "after.onnx")
    assert [node.op_type for node in onnx.load(tmp_path / "after.onnx").graph.node] == ["Add"]


def test_what_is_no_subtraction_of_a_constant_of_floats_is_left_alone() -> None:
    floats = numpy_helper.from_array(np.ones(3, np.float32), "c")
    ints = numpy_helper.from_array(np.ones(3, np.int64), "i")
    for nodes, type_ in (
        ([helper.make_node("Sub", ["c", "x"], ["y"])], TensorProto.FLOAT),
        ([helper.make_node("Sub", ["x", "x"], ["y"])], TensorProto.FLOAT),
        ([helper.make_node("Sub", ["x", "i"], ["y"])], TensorProto.INT64),
    ):
        graph = model(nodes, [floats, ints], "y", type_, ["n", 3])
        before = graph.SerializeToString(deterministic=True)
        assert fold_subtractions(graph) == 0
        assert graph.SerializeToString(deterministic=True) == before


def test_a_constant_that_a_run_may_replace_is_none() -> None:
    constant = numpy_helper.from_array(np.ones(3, np.float32), "c")
    graph = model([helper.make_node("Sub", ["x", "c"], ["y"])], [constant], "y", TensorProto.FLOAT, ["n", 3])
    graph.graph.input.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [3]))
    assert fold_subtractions(graph) == 0


def test_a_constant_is_negated_once_for_all_who_read_it() -> None:
    constant = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "c")
    nodes = [helper.make_node("Sub", ["x", "c"], ["half"]), helper.make_node("Sub", ["half", "c"], ["y"])]
    graph = model(nodes, [constant], "y", TensorProto.FLOAT, ["n", 3])
    assert fold_subtractions(graph) == 2
    assert [node.op_type for node in graph.graph.node] == ["Neg", "Add", "Add"]
    assert run(graph, np.ones((1, 3), np.float32)).tolist() == [[-1, -3, -5]]
