"""The runtime directory, and the lock that keeps two supervisors from sharing one."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.resource_error import ResourceError

LOCK_NAME = "headrace.lock"
_LEFTOVERS = ("engine-*.sock", "admin.sock")


class RuntimeDir:
    """The directory, held. Something that tidies temporary files may remove it while it is in use: see ``restore``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd = _hold(path)

    def restore(self) -> bool:
        """Make and hold it again if it was removed; True: it was. Raises ResourceError."""
        try:
            found, held = (self.path / LOCK_NAME).stat(), os.fstat(self._lock_fd)
            if (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino):
                return False
        except FileNotFoundError:
            pass
        lost, self._lock_fd = self._lock_fd, _hold(self.path)
        os.close(lost)
        return True

    def sweep(self) -> None:
        """Remove the sockets that lie there."""
        for pattern in _LEFTOVERS:
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)

    def release(self) -> None:
        """Let others have it."""
        os.close(self._lock_fd)


@contextmanager
def claim(path: Path) -> Iterator[RuntimeDir]:
    """Hold the directory, made if it is missing, until the end; sockets of a run before are removed.

    Raises ResourceError if it cannot be written or another headrace holds it.
    """
    held = RuntimeDir(path)
    try:
        held.sweep()
        yield held
        held.sweep()
    finally:
        held.release()


def _hold(path: Path) -> int:
    """The descriptor of the lock file, locked."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(path)
        fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResourceError(f"{path}: {reason}; set `runtime_dir` to a directory that can be written") from None
    try:
        _lock(fd, path)
    except ResourceError:
        os.close(fd)
        raise
    return fd


def _check_owner(path: Path) -> None:
    """Whoever else may write there, or made the link to it, could put sockets of his own in the place of ours."""
    status = path.stat()
    is_ours = status.st_uid == path.lstat().st_uid == os.geteuid()
    if not is_ours or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        advice = "it must belong to the user that runs headrace, and nobody else may write it"
        raise ResourceError(f"{path}: not safe for sockets: {advice}; set `runtime_dir` to one that is")


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        advice = "stop it, or give this one a `runtime_dir` of its own"
        raise ResourceError(f"{path}: another headrace (pid {holder}) is running there; {advice}") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
