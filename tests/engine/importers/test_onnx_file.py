"""ONNX files that nobody vouches for: what they refer to, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.importers import trial
from engine.importers.onnx_import import import_onnx
from engine.model_folder import ModelError, ModelFolder
from engine.session import open_session
from tests.engine.tiny_tensors import graph_of, identity, linear

LARGE = np.random.default_rng(0).standard_normal((40, 60)).astype(np.float32)


def quiet(stage: str, done: int, total: int) -> None:
    """No progress is looked at."""


def large(dtype: type = np.float32) -> onnx.ModelProto:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return graph_of(
        [("x", element, ["n", 40])],
        [("y", element, ["n", 60])],
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        w=LARGE.astype(dtype),
    )


def saved(tmp_path: Path, model: onnx.ModelProto | None = None) -> Path:
    """The model with its weights in w.bin beside it."""
    path = tmp_path / "source" / "tiny.onnx"
    path.parent.mkdir()
    onnx.save_model(model or large(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def edited(path: Path, edit: Callable[[TensorProto], None]) -> Path:
    model = onnx.load(path, load_external_data=False)
    edit(model.graph.initializer[0])
    path.write_bytes(model.SerializeToString())
    return path


def put(tensor: TensorProto, **entries: object) -> None:
    kept = {entry.key: entry.value for entry in tensor.external_data} | entries
    del tensor.external_data[:]
    for key, value in kept.items():
        tensor.external_data.add(key=key, value=str(value))


def bring_in(source: Path, tmp_path: Path) -> ModelFolder:
    return import_onnx(source, tmp_path / "tiny", progress=quiet)


def check(folder: ModelFolder, dtype: type = np.float32) -> None:
    x = np.eye(40, dtype=dtype)
    given = open_session(folder.file("model.onnx"), threads=1).run(["y"], {"x": x})[0]
    assert np.array_equal(given, LARGE.astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_weights_are_stored_beside_the_graph_wherever_they_were(tmp_path: Path, dtype: type) -> None:
    path = tmp_path / "tiny.onnx"
    onnx.save_model(large(dtype), path)
    folder = bring_in(path, tmp_path)
    assert folder.file("weights.bin").stat().st_size == LARGE.astype(dtype).nbytes
    assert folder.file("model.onnx").stat().st_size < 1000
    check(folder, dtype)
    source = saved(tmp_path, large(dtype))
    folder = bring_in(source, tmp_path)
    assert folder.manifest.source.file == "tiny.onnx"
    check(folder, dtype)


def test_numbers_that_are_listed_one_by_one_are_weights_too(tmp_path: Path) -> None:
    model = large()
    listed = helper.make_tensor("w", TensorProto.FLOAT, LARGE.shape, LARGE.flatten().tolist())
    model.graph.initializer[0].CopyFrom(listed)
    onnx.save_model(model, tmp_path / "tiny.onnx")
    check(bring_in(tmp_path / "tiny.onnx", tmp_path))


def test_small_weights_come_into_the_graph(tmp_path: Path) -> None:
    folder = bring_in(saved(tmp_path, linear()), tmp_path)
    assert set(folder.manifest.files) == {"model.onnx"}


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "", "link.bin", "nothing.bin", "."])
def test_external_data_may_not_leave_the_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(LARGE.nbytes))
    path = edited(saved(tmp_path), lambda tensor: put(tensor, location=location))
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelError, match=r"the data of 'w' (would|should) lie in"):
        bring_in(path, tmp_path)
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize(
    "entries",
    [{"offset": 1}, {"offset": -1}, {"length": 4}, {"length": 1 << 60}, {"offset": "x"}, {"offset": 1 << 70}],
)
def test_external_data_must_be_there(tmp_path: Path, entries: dict[str, object]) -> None:
    path = edited(saved(tmp_path), lambda tensor: put(tensor, **entries))
    with pytest.raises(ModelError, match="'w'"):
        bring_in(path, tmp_path)


def test_a_small_file_cannot_stand_for_large_weights(tmp_path: Path) -> None:
    path = saved(tmp_path)
    model = onnx.load(path, load_external_data=False)
    for shift in range(1, 50):
        tensor = model.graph.initializer.add()
        tensor.CopyFrom(model.graph.initializer[0])
        tensor.name = f"w{shift}"
        tensor.dims[0] = 39
        put(tensor, offset=shift * 4, length=39 * 60 * 4)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="refers to more data than lies beside it"):
        bring_in(path, tmp_path)


def test_only_weights_may_lie_elsewhere(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(np.ones(4, np.float32), "hidden")
    put(tensor, location="/etc/passwd")
    model = graph_of(
        [("x", TensorProto.FLOAT, ["n", 4])],
        [("y", TensorProto.FLOAT, ["n", 4])],
        [helper.make_node("Constant", [], ["c"], value=tensor), helper.make_node("Add", ["x", "c"], ["y"])],
    )
    (tmp_path / "tiny.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="the data of 'hidden' lies in another file, which only weights may"):
        bring_in(tmp_path / "tiny.onnx", tmp_path)


def test_what_is_no_onnx_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    for content, message in [
        (b"\x80\x04 pickle", "is not an ONNX file|has no graph"),
        (b"", "has no graph"),
        (linear().SerializeToString()[:-7], "is not an ONNX file"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ModelError, match=message):
            bring_in(path, tmp_path)
    with pytest.raises(ModelError, match="No such file"):
        bring_in(tmp_path / "none.onnx", tmp_path)


@pytest.mark.parametrize("version", [6, 999])
def test_an_opset_that_is_not_run_is_named(tmp_path: Path, version: int) -> None:
    model = linear()
    model.opset_import[0].version = version
    (tmp_path / "tiny.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=f"is of opset {version}, those from 7 to"):
        bring_in(tmp_path / "tiny.onnx", tmp_path)


def test_datatypes_without_a_name_in_the_protocol_are_refused(tmp_path: Path) -> None:
    onnx.save_model(identity(TensorProto.BFLOAT16), tmp_path / "tiny.onnx")
    with pytest.raises(ModelError, match="the input 'x' is bfloat16, which cannot be served"):
        bring_in(tmp_path / "tiny.onnx", tmp_path)
    sequence = identity()
    sequence.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(sequence.graph.output[0].type))
    onnx.save_model(sequence, tmp_path / "tiny.onnx")
    with pytest.raises(ModelError, match="the output 'y' is no tensor, which cannot be served"):
        bring_in(tmp_path / "tiny.onnx", tmp_path)


def test_an_operator_that_is_not_known_is_named(tmp_path: Path) -> None:
    model = identity()
    model.graph.node[0].op_type = "Frobnicate"
    onnx.save_model(model, tmp_path / "tiny.onnx")
    with pytest.raises(ModelError, match="Frobnicate"):
        bring_in(tmp_path / "tiny.onnx", tmp_path)


def test_a_graph_that_runs_for_ever_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_TIME_S", 3)
    turn = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["before"], ["after"])],
        "turn",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, ["n", 4]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, ["n", 4]),
        ],
    )
    model = graph_of(
        [("x", TensorProto.FLOAT, ["n", 4])],
        [("y", TensorProto.FLOAT, ["n", 4])],
        [helper.make_node("Loop", ["", "yes", "x"], ["y"], body=turn)],
        yes=np.array(True),
    )
    onnx.save_model(model, tmp_path / "tiny.onnx")
    with pytest.raises(ModelError, match="not done within 3 s"):
        bring_in(tmp_path / "tiny.onnx", tmp_path)
