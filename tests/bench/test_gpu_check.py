"""The check for machines with a GPU: skipped cleanly here, and rehearsed on the CPU, so that there it is not new."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import gpu_check
from engine.importers.bert import import_bert
from engine.importers.gguf import import_gguf
from tests.engine.tiny_bert import write_bert_folder
from tests.engine.tiny_gguf import write_tiny_gguf


def test_without_a_gpu_it_says_what_it_would_do_and_leaves_with_zero(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "_providers_here", lambda: ())
    assert gpu_check.main([]) == 0
    said = capsys.readouterr().out
    assert said.startswith("skipped: no NVIDIA GPU here, or no onnxruntime-gpu")
    assert said.count("\n") == 2 + len(gpu_check.CHECKS)


def test_its_checks_hold_on_the_cpu_and_one_that_fails_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import_bert(write_bert_folder(tmp_path / "bert"), tmp_path / gpu_check.EMBEDDING)
    import_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", "Q4_1"), tmp_path / gpu_check.CHAT)
    assert gpu_check.main(["--models", str(tmp_path), "--rehearse"]) == 0
    said = capsys.readouterr().out
    assert "cosine to the CPU 1.00000" in said
    assert "mean KL to the CPU 0.00000" in said
    assert "elsewhere: nothing" in said
    (tmp_path / gpu_check.CHAT / "model.onnx").unlink()
    assert gpu_check.main(["--models", str(tmp_path), "--rehearse"]) == 1
    assert capsys.readouterr().out.count("FAILED: ModelError") == 3
    assert gpu_check.main(["--models", str(tmp_path), "--rehearse", "--minutes", "0"]) == 1
    assert capsys.readouterr().out.count("NOT BEGUN") == 4
