"""What the catalogue knows of an ONNX file, on a file that is as small as it may be."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from engine.catalog_extras import LINES, pp_ocr
from engine.importers.onnx_import import import_onnx
from engine.model_folder import ModelError
from engine.settings import ModelSettings
from engine.tensors.load import load_tensor_model
from tests.engine.tiny_tensors import graph_of


def write(path: Path, **metadata: str) -> Path:
    model = graph_of(
        [("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [("y", TensorProto.FLOAT, ["n", 3])],
        [helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)],
    )
    helper.set_model_props(model, metadata)
    onnx.save(model, path / "rec.onnx")
    return path / "rec.onnx"


def test_a_reader_of_lines_takes_pictures_of_its_widths(tmp_path: Path) -> None:
    file = write(tmp_path, character="a\nb")
    folder = import_onnx(file, tmp_path / "lines", progress=lambda *_: None, extras=pp_ocr(tmp_path))
    assert folder.tensors.inputs[0].shape == (-1, 3, 48, -1)
    assert folder.manifest.adapter is not None
    assert folder.manifest.adapter.image == LINES
    assert (folder.path / "characters.txt").read_text() == "a\nb"
    model = load_tensor_model(folder, ModelSettings("lines", str(folder.path)), threads=1)
    assert (model.max_batch, list(model.adapters)) == (8, ["x"])
    model.close()


def test_a_file_without_characters_is_another_one(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ModelError, match="has no metadata `character`"):
        pp_ocr(tmp_path)
