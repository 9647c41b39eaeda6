"""The runtime directory: one supervisor at a time, and no sockets of a run before."""

from __future__ import annotations

import os
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


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ResourceError, match="file/run: Not a directory; set `runtime_dir`"),
        claim(tmp_path / "file" / "run"),
    ):
        pass
