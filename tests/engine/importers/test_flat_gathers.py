"""A change of strides as PyTorch's exporter writes it: unrolled where it moves nothing, and else left alone."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from engine.importers.flat_gathers import unroll
from engine.importers.onnx_file import Extent
from engine.importers.onnx_import import import_onnx
from tests.engine.tiny_tensors import graph_of

IN_ORDER = np.arange(6).reshape(1, 6, 1, 1)


def pooled(places: Any = IN_ORDER, flat: Any = (-1,), axis: int = 0) -> onnx.ModelProto:
    """y: means over the pixels of x, float32[1, 6, 2, 2], gathered by their places."""
    model = graph_of(
        [("x", TensorProto.FLOAT, [1, 6, 2, 2])],
        [("y", TensorProto.FLOAT, [1, 6])],
        [
            helper.make_node("ReduceMean", ["x"], ["mean"], axes=[2, 3], keepdims=1),
            helper.make_node("Reshape", ["mean", "flat"], ["line"]),
            helper.make_node("Gather", ["line", "places"], ["gathered"], "pick", axis=axis),
            helper.make_node("Reshape", ["gathered", "rows"], ["y"]),
        ],
        flat=np.array(flat),
        places=places,
        rows=np.array([1, -1]),
    )
    model.graph.value_info.append(helper.make_tensor_value_info("mean", TensorProto.FLOAT, [1, 6, 1, 1]))
    return model


def run(model: onnx.ModelProto) -> np.ndarray:
    x = np.random.default_rng(0).random((1, 6, 2, 2)).astype(np.float32)
    (y,) = ReferenceEvaluator(model).run(None, {"x": x})
    return np.asarray(y)


def test_what_moves_nothing_is_one_reshape() -> None:
    model = pooled()
    before = run(model)
    assert unroll(model, {}) == ["pick"]
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["ReduceMean", "Reshape", "Reshape"]
    assert "places" not in {tensor.name for tensor in model.graph.initializer}
    np.testing.assert_array_equal(run(model), before)


@pytest.mark.parametrize(
    "change",
    [{"places": IN_ORDER[:, ::-1]}, {"places": IN_ORDER[:, :5]}, {"places": IN_ORDER.astype(np.int32)}],
)
def test_anything_else_is_left_alone(change: dict[str, Any]) -> None:
    model = pooled(**change)
    before = model.SerializeToString()
    assert unroll(model, {}) == []
    assert model.SerializeToString() == before


def test_of_a_size_that_is_not_known_it_is_left_alone() -> None:
    model = pooled()
    del model.graph.value_info[:]
    assert unroll(model, {}) == []


def test_places_that_lie_beside_the_file(tmp_path: Path) -> None:
    model = pooled()
    (places,) = (tensor for tensor in model.graph.initializer if tensor.name == "places")
    file = tmp_path / "data"
    file.write_bytes(b"other" + numpy_helper.to_array(places).tobytes())
    places.ClearField("raw_data")
    assert unroll(model, {"places": Extent(file, 5, 48)}) == ["pick"]


def test_such_a_graph_takes_any_number_of_rows(tmp_path: Path) -> None:
    onnx.save(pooled(), tmp_path / "pooled.onnx")
    folder = import_onnx(tmp_path / "pooled.onnx", tmp_path / "pooled", progress=lambda *_: None)
    assert folder.tensors.batched
    assert folder.manifest.changes[0] == "pick: a Reshape instead of gathering every place in its order"
