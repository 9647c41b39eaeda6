"""A PyTorch exported program (.pt2) made into a model folder, by way of ONNX.

PyTorch works in a process of its own, the only place of the engine where it is imported: it is an extra, takes seconds
to start, and what it makes of a file is bounded there in memory and time.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.importers.onnx_import import NO_EXTRAS, Extras, import_onnx
from engine.importers.pt2_archive import checked_copy
from engine.model_folder import ModelError, ModelFolder

_TIME_S = 1800


def import_exported_program(
    source: Path,
    destination: Path,
    *,
    name: str | None = None,
    progress: Callable[[str, int, int], None],
    extras: Extras = NO_EXTRAS,
) -> ModelFolder:
    """Make the model folder `destination` from a .pt2 file. Raises ModelError, also when PyTorch is not installed."""
    if missing := [package for package in ("torch", "onnxscript") if importlib.util.find_spec(package) is None]:
        raise ModelError(f"{source}: needs {' and '.join(missing)}; install them with `pip install 'headrace[torch]'`")
    with TemporaryDirectory(dir=destination.parent, prefix=".torch-") as place:
        program, graph = Path(place) / "program.pt2", Path(place) / f"{source.stem}.onnx"
        progress("check", 0, 1)
        checked_copy(source, program)
        progress("check", 1, 1)
        progress("translate", 0, 1)
        _translate(program, graph, source)
        program.unlink()
        progress("translate", 1, 1)
        return import_onnx(graph, destination, name=name, progress=progress, extras=extras, origin=source)


def _translate(program: Path, graph: Path, source: Path) -> None:
    command = [sys.executable, "-m", "engine.importers.torch_to_onnx", str(program), str(graph)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIME_S, check=False)
    except subprocess.TimeoutExpired:
        raise ModelError(f"{source}: PyTorch did not translate it within {_TIME_S} s") from None
    if done.returncode or not graph.is_file():
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise ModelError(f"{source}: PyTorch cannot translate it ({(lines or ['it gave no reason'])[-1][:500]})")
