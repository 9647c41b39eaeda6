"""Wheels made on the spot, and a directory of them as pip's only index."""

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.fetch import Wheel


def make_wheel(directory: Path, project: str, files: Mapping[str, bytes], version: str = "1.0") -> Wheel:
    """Write a wheel with these files; what a catalogue would say of it."""
    stem = f"{project.replace('-', '_')}-{version}"
    path = directory / f"{stem}-py3-none-any.whl"
    directory.mkdir(parents=True, exist_ok=True)
    facts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        for name, text in facts.items():
            archive.writestr(f"{stem}.dist-info/{name}", text)
    content = path.read_bytes()
    return Wheel(project, version, path.name, len(content), hashlib.sha256(content).hexdigest())


def use_as_index(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Make pip find wheels in ``directory`` and nowhere else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
