"""Sessions say what they cannot do."""

import os
from pathlib import Path

import pytest

from engine.model_folder import ModelError
from engine.session import open_session


def test_telemetry_is_off() -> None:
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"


def test_a_provider_that_is_not_installed_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"CUDAExecutionProvider is not in this onnxruntime.*CPUExecutionProvider"):
        open_session(tmp_path / "model.onnx", threads=1, providers=["CUDAExecutionProvider"])


def test_a_graph_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_bytes(b"no graph")
    with pytest.raises(ModelError, match=r"model\.onnx: ONNX Runtime cannot load it"):
        open_session(graph, threads=1)
