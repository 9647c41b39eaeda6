"""The axis of rows is made free where rows that run together come out as they do alone, and nowhere else."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine.importers.onnx_import import Extras, import_onnx
from engine.model_folder import ModelError, ModelFolder
from engine.session import open_session
from tests.engine.tiny_tensors import WEIGHTS, graph_of, identity, linear


def quiet(stage: str, done: int, total: int) -> None:
    """No progress is looked at."""


def bring_in(tmp_path: Path, model: onnx.ModelProto, **shapes: Any) -> ModelFolder:
    onnx.save_model(model, tmp_path / "tiny.onnx")
    return import_onnx(tmp_path / "tiny.onnx", tmp_path / "tiny", progress=quiet, extras=Extras(shapes=shapes))


def run(folder: ModelFolder, x: np.ndarray) -> np.ndarray:
    session = open_session(folder.file("model.onnx"), threads=1)
    result: np.ndarray = session.run(["y"], {"x": x})[0]
    return result


def flatten(rows: int, *, constant: bool = False, lengths: tuple[int, ...] = (1, -1)) -> onnx.ModelProto:
    """y = the numbers of each row of x, one after another, times 2; x: float32[rows, 2, 3]."""
    shape = np.array([rows, *lengths[1:]])
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"], allowzero=int(constant)),
        helper.make_node("Add", ["flat", "flat"], ["y"]),
    ]
    tables = {"shape": shape}
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], ["shape"], value=onnx.numpy_helper.from_array(shape)))
        tables = {}
    return graph_of([("x", TensorProto.FLOAT, [rows, 2, 3])], [("y", TensorProto.FLOAT, [rows, 6])], nodes, **tables)


def test_a_graph_with_a_free_axis_is_left_as_it_is(tmp_path: Path) -> None:
    folder = bring_in(tmp_path, linear())
    assert folder.manifest.changes == ()
    assert folder.tensors.batched
    assert folder.tensors.input("x").shape == (-1, 4)  # type: ignore[union-attr]
    assert folder.tensors.example == {}


@pytest.mark.parametrize("rows", [1, 5])
def test_a_fixed_number_of_rows_is_made_free(tmp_path: Path, rows: int) -> None:
    folder = bring_in(tmp_path, linear(rows))
    assert folder.manifest.changes == (
        f"the first axis of all inputs and outputs may have any length instead of {rows}",
    )
    assert [tensor.shape for tensor in folder.tensors.outputs] == [(-1, 3), (-1,)]
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(run(folder, x), x @ WEIGHTS, rtol=1e-6)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("lengths", [(1, -1), (1, 6)])
def test_constant_shapes_are_made_free_too(tmp_path: Path, constant: bool, lengths: tuple[int, ...]) -> None:
    folder = bring_in(tmp_path, flatten(1, constant=constant, lengths=lengths))
    assert folder.tensors.batched
    assert folder.manifest.changes[1:] == ("Reshape to as many rows as there are instead of 1: flat",)
    x = np.arange(18, dtype=np.float32).reshape(3, 2, 3)
    assert np.array_equal(run(folder, x), 2 * x.reshape(3, 6))


def test_rows_that_depend_on_each_other_are_left_alone(tmp_path: Path) -> None:
    model = graph_of(
        [("x", TensorProto.FLOAT, ["n", 4])],
        [("y", TensorProto.FLOAT, ["n", 4])],
        [helper.make_node("Softmax", ["x"], ["y"], axis=0)],
    )
    folder = bring_in(tmp_path, model)
    assert not folder.tensors.batched
    assert folder.manifest.changes == (
        "left as it is, so requests do not share runs: its output 'y' differs beside other rows",
    )
    assert folder.tensors.example == {"x": (16, 4)}


def test_a_graph_that_takes_one_row_only_is_left_as_it_is(tmp_path: Path) -> None:
    """Its rows and columns are merged before anything is computed: no shape can be told from the other."""
    model = graph_of(
        [("x", TensorProto.FLOAT, [1, 4])],
        [("y", TensorProto.FLOAT, [1, 4])],
        [
            helper.make_node("Reshape", ["x", "flat"], ["vector"]),
            helper.make_node("Add", ["vector", "four"], ["sum"]),
            helper.make_node("Reshape", ["sum", "back"], ["y"]),
        ],
        flat=np.array([4]),
        back=np.array([1, 4]),
        four=np.arange(4, dtype=np.float32),
    )
    folder = bring_in(tmp_path, model)
    assert not folder.tensors.batched
    assert "it takes one row and not 2" in folder.manifest.changes[0]
    assert run(folder, np.ones((1, 4), np.float32)).tolist() == [[1, 2, 3, 4]]


def test_what_comes_out_differently_each_time_is_left_alone(tmp_path: Path) -> None:
    model = graph_of(
        [("x", TensorProto.FLOAT, ["n", 4])],
        [("y", TensorProto.FLOAT, ["n", 4])],
        [
            helper.make_node("RandomUniformLike", ["x"], ["noise"]),
            helper.make_node("Add", ["x", "noise"], ["y"]),
        ],
    )
    assert not bring_in(tmp_path, model).tensors.batched


def test_inputs_without_an_axis_of_rows_in_common_are_left_as_they_are(tmp_path: Path) -> None:
    model = graph_of(
        [("x", TensorProto.FLOAT, [2, 4]), ("factor", TensorProto.FLOAT, [])],
        [("y", TensorProto.FLOAT, [2, 4])],
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
    )
    folder = bring_in(tmp_path, model)
    assert folder.manifest.changes == (
        "left as it is, so requests do not share runs: its inputs have no axis of rows in common",
    )


def test_free_axes_are_tried_and_a_row_that_ran_is_kept_for_the_warm_up(tmp_path: Path) -> None:
    folder = bring_in(tmp_path, identity())
    assert folder.tensors.batched
    assert folder.tensors.example == {"x": (16,)}


def test_a_shape_can_be_told_more_narrowly_than_the_graph_has_it(tmp_path: Path) -> None:
    folder = bring_in(tmp_path, identity(shape=["n", "height", "width"]), x=(-1, 48, -1))
    assert folder.tensors.input("x").shape == (-1, 48, -1)  # type: ignore[union-attr]
    assert folder.tensors.example == {"x": (48, 16)}
    with pytest.raises(ModelError, match="no input or output 'z'; there is: x, y"):
        bring_in(tmp_path, identity(), z=(-1, 2))


def test_whole_numbers_that_look_something_up_are_tried_small(tmp_path: Path) -> None:
    model = graph_of(
        [("x", TensorProto.INT64, ["n", "length"])],
        [("y", TensorProto.FLOAT, ["n", "length"])],
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        table=np.array([1.5, 2.5], np.float32),
    )
    assert bring_in(tmp_path, model).tensors.batched


def test_a_graph_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    """It asks for more memory than there is."""
    model = graph_of(
        [("x", TensorProto.INT64, [1])],
        [("y", TensorProto.FLOAT, ["n"])],
        [
            helper.make_node("Mul", ["x", "many"], ["length"]),
            helper.make_node("Add", ["length", "many"], ["length1"]),
            helper.make_node("ConstantOfShape", ["length1"], ["y"]),
        ],
        many=np.array([1 << 40]),
    )
    with pytest.raises(ModelError, match=r"tiny\.onnx: it cannot be run"):
        bring_in(tmp_path, model)
    assert not (tmp_path / "tiny").exists()
