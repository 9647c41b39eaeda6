"""Files that are there whole or not at all: written beside their places, flushed to the disk, then renamed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import NamedTuple


class NewFile(NamedTuple):
    """What shall be in a file. mode: its rights if there is none yet."""

    path: Path
    content: bytes
    mode: int = 0o600


def write_atomically(*files: NewFile) -> None:
    """Puts all the files in their places; a full disk leaves everything as it was before. Raises OSError.

    None is renamed before all are on the disk, so only a crash between two renames can leave some old and some new.
    A file that is replaced keeps its owner, group and rights; a new one that root writes gets the owner of its
    directory: root adding a key must not lock out the user that serves.
    """
    staged: list[tuple[str, Path]] = []
    try:
        for file in files:
            target = Path(os.path.realpath(file.path))  # a link stays a link
            descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
            staged.append((name, target))
            _fill(descriptor, target, file)
        for name, target in staged:
            os.replace(name, target)
    finally:
        for name, _ in staged:
            with contextlib.suppress(FileNotFoundError):  # renamed, as it should be
                os.unlink(name)
    for directory in {target.parent for _, target in staged}:
        _flush_directory(directory)


def _fill(descriptor: int, target: Path, file: NewFile) -> None:
    try:
        before = target.stat()
        mode = before.st_mode & 0o777
    except FileNotFoundError:
        before = target.parent.stat()
        mode = file.mode
    with open(descriptor, "wb") as stream:
        if os.geteuid() == 0:
            os.fchown(descriptor, before.st_uid, before.st_gid)
        os.fchmod(descriptor, mode)
        stream.write(file.content)
        stream.flush()
        os.fsync(descriptor)


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
