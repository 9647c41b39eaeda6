"""The runtime directory: one supervisor at a time, and no sockets of a run before."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from appliance.lock import claim
from appliance.resource_error import ResourceError


def test_it_is_made_for_the_owner_alone_and_swept_before_and_after(tmp_path: Path) -> None:
    runtime_dir = tmp_path / "a" / "b"
    with claim(runtime_dir):
        assert runtime_dir.stat().st_mode & 0o777 == 0o700
        (runtime_dir / "engine-1.sock").touch()
    assert not (runtime_dir / "engine-1.sock").exists()
    (runtime_dir / "engine-7.sock").touch()
    with claim(runtime_dir):
        assert not (runtime_dir / "engine-7.sock").exists()


def test_a_second_one_is_told_who_holds_it(tmp_path: Path) -> None:
    taken = pytest.raises(ResourceError, match=rf"another headrace \(pid {os.getpid()}\)")
    with claim(tmp_path), taken, claim(tmp_path):
        pass
    with claim(tmp_path):
        pass


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ResourceError, match="nobody else may write it"), claim(tmp_path):
        pass


def test_a_link_that_somebody_else_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("run")
    with claim(tmp_path / "link"):
        pass
    ours = os.geteuid()
    lstat = Path.lstat
    monkeypatch.setattr(Path, "lstat", lambda path: os.stat_result((*lstat(path)[:4], ours + 1, *lstat(path)[5:])))
    with pytest.raises(ResourceError, match="not safe for sockets"), claim(tmp_path / "link"):
        pass


def test_a_removed_one_is_made_and_held_again(tmp_path: Path) -> None:
    with claim(tmp_path / "run") as held:
        assert not held.restore()
        shutil.rmtree(tmp_path / "run")
        assert held.restore()
        assert not held.restore()
        taken = pytest.raises(ResourceError, match=rf"another headrace \(pid {os.getpid()}\)")
        with taken, claim(tmp_path / "run"):
            pass


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ResourceError, match="file/run: Not a directory; set `runtime_dir`"),
        claim(tmp_path / "file" / "run"),
    ):
        pass
