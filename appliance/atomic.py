"""Files that are there whole or not at all: written beside the target, flushed to the disk, then renamed over it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Puts ``content`` at ``path``; a crash or a full disk leaves what was there before. Raises OSError.

    A file that is replaced keeps its owner, group and rights, a new one gets ``mode`` and, when root writes it, the
    owner of its directory: root adding a key must not lock out the user that serves.
    """
    path = Path(os.path.realpath(path))  # a link stays a link
    try:
        before = path.stat()
        mode = before.st_mode & 0o777
    except FileNotFoundError:
        before = path.parent.stat()
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            if os.geteuid() == 0:
                os.fchown(descriptor, before.st_uid, before.st_gid)
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    _flush_directory(path.parent)


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
