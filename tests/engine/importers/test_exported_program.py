"""A PyTorch exported program becomes a model folder; PyTorch is an extra, so without it the first test alone runs."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.catalog import import_model
from engine.importers import exported_program
from engine.model_folder import ModelError
from engine.session import open_session

HAS_TORCH = all(importlib.util.find_spec(package) for package in ("torch", "onnxscript"))

#: Run in a process of its own: PyTorch takes seconds and half a gigabyte.
MAKE = """
import sys, torch

class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.linear.weight.data = torch.arange(12.0).reshape(3, 4)
        self.linear.bias.data = torch.zeros(3)

    def forward(self, x):
        return torch.relu(self.linear(x).flatten(1))

program = torch.export.export(Tiny().eval(), (torch.ones(int(sys.argv[2]), 4),))
torch.export.save(program, sys.argv[1])
"""


def quiet(stage: str, done: int, total: int) -> None:
    """No progress is looked at."""


def test_without_pytorch_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.pt2").write_bytes(b"")
    monkeypatch.setattr(exported_program.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(
        ModelError, match=r"needs torch and onnxscript; install them with `pip install 'headrace\[torch\]'`"
    ):
        import_model(tmp_path / "tiny.pt2", tmp_path / "models", quiet)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch and onnxscript are not installed (the extra `torch`)")
def test_a_program_for_one_row_takes_any_number(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", MAKE, tmp_path / "tiny.pt2", "1"], check=True)
    folder = import_model(tmp_path / "tiny.pt2", tmp_path / "models", quiet)
    assert folder.name == "tiny"
    assert folder.manifest.source.file == "tiny.pt2"
    assert folder.tensors.batched
    assert folder.manifest.changes[0] == "the first axis of all inputs and outputs may have any length instead of 1"
    session = open_session(folder.file("model.onnx"), threads=1)
    x = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, -1]], np.float32)
    (given,) = session.run(None, {session.get_inputs()[0].name: x})
    assert given.tolist() == [[0, 4, 8], [1, 5, 9], [0, 0, 0]]
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny"]
