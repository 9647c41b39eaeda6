"""Files are there whole or not at all."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from appliance.atomic import NewFile, write_atomically


@contextmanager
def full_disk(room_bytes: int) -> Iterator[None]:
    """No file grows beyond ``room_bytes``: writing more fails, as it does when the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_new_file_gets_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "f"
    before = os.umask(0o077)
    try:
        write_atomically(NewFile(path, b"new", 0o644))
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_replaced_file_keeps_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_atomically(NewFile(path, b"new", 0o600))
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_atomically(NewFile(tmp_path / "link", b"new"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with full_disk(1024), pytest.raises(OSError, match="too large"):
        write_atomically(NewFile(path, b"x" * 4096))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_several_files_change_together_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with full_disk(1024), pytest.raises(OSError, match="too large"):
        write_atomically(NewFile(tmp_path / "a", b"new"), NewFile(tmp_path / "b", b"x" * 4096))
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(NewFile(tmp_path / "none/f", b"x"))
