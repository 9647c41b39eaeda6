"""Sessions say what they cannot do, and fall back only when they are told to."""

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from engine import session
from engine.model_folder import ModelError
from engine.providers import Placement
from engine.session import open_session


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A graph that any provider loads."""
    kind = TensorProto.FLOAT
    node = helper.make_node("Neg", ["x"], ["y"])
    made = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", kind, [1])], [helper.make_tensor_value_info("y", kind, [1])]
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[onnxruntime.SessionOptions]:
    """The options of the sessions that are opened."""
    made: list[onnxruntime.SessionOptions] = []

    def options() -> onnxruntime.SessionOptions:
        made.append(onnxruntime.SessionOptions())
        return made[-1]

    monkeypatch.setattr(session, "ort", SimpleNamespace(**{**vars(onnxruntime), "SessionOptions": options}))
    return made


def test_no_plan_of_memory_is_kept_for_each_shape(graph: Path, made: list[onnxruntime.SessionOptions]) -> None:
    """bench/shapes.py and bench/llm_soak.py show what they take."""
    open_session(graph, threads=1)
    assert [each.enable_mem_pattern for each in made] == [False]


@pytest.mark.parametrize(
    ("cpu_info", "is_asked"),
    [
        ("model name\t: old\nflags\t\t: fpu avx2 avx512f\n", True),
        ("flags\t\t: fpu avx2 avx512_vnni sha_ni\nflags\t\t: fpu\n", False),
        ("flags\t\t: fpu avx2 avx_vnni\n", False),
        ("Features\t: fp asimd\n", True),
        (None, True),
    ],
)
def test_where_eight_bits_would_overflow_exact_products_are_asked_for(
    graph: Path,
    made: list[onnxruntime.SessionOptions],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cpu_info: str | None,
    is_asked: bool,
) -> None:
    if cpu_info is not None:
        (tmp_path / "cpuinfo").write_text(cpu_info)
    monkeypatch.setattr(session, "_CPU_INFO", tmp_path / "cpuinfo")
    open_session(graph, threads=1)
    if is_asked:
        assert made[0].get_session_config_entry("session.x64quantprecision") == "1"
    else:
        with pytest.raises(RuntimeError):
            made[0].get_session_config_entry("session.x64quantprecision")


def test_telemetry_is_off() -> None:
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"


def test_a_provider_that_is_not_installed_is_named_with_those_that_are(graph: Path) -> None:
    with pytest.raises(ModelError, match="this onnxruntime has cpu, not cuda; install"):
        open_session(graph, threads=1, placement=Placement("cuda"))


def test_falling_back_is_by_configuration_and_told(graph: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened = open_session(graph, threads=1, placement=Placement("cuda", fallback=("cpu",)))
    assert opened.get_providers() == ["CPUExecutionProvider"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "cuda is not installed; falling back to cpu" in caplog.text


def test_a_provider_that_does_not_start_is_no_silent_cpu(
    graph: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session, "installed_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(session, "InferenceSession", _without_libraries)
    with pytest.raises(ModelError, match="CUDAExecutionProvider does not start, only CPUExecutionProvider; are"):
        open_session(graph, threads=1, placement=Placement("cuda"))
    opened = open_session(graph, threads=1, placement=Placement("cuda", fallback=("cpu",)))
    assert opened.get_providers() == ["CPUExecutionProvider"]
    assert "falling back to cpu" in caplog.text


def _without_libraries(path: str, options: object, *, providers: list[object], enable_fallback: int) -> object:
    """What onnxruntime-gpu does on a box without CUDA: it goes on with the providers that start."""
    assert not enable_fallback
    return onnx_session(path, options, providers=providers[-1:])


onnx_session = session.InferenceSession


def test_a_graph_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_bytes(b"no graph")
    with pytest.raises(ModelError, match=r"model\.onnx: ONNX Runtime cannot load it"):
        open_session(graph, threads=1)
