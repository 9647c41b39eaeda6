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


@contextmanager
def claim(runtime_dir: Path) -> Iterator[None]:
    """Hold the directory, made if it is missing, until the end; sockets of a run before are removed.

    Raises ResourceError if it cannot be written or another headrace holds it.
    """
    try:
        runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(runtime_dir)
        fd = os.open(runtime_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResourceError(f"{runtime_dir}: {reason}; set `runtime_dir` to a directory that can be written") from None
    try:
        _lock(fd, runtime_dir)
        _sweep(runtime_dir)
        yield
        _sweep(runtime_dir)
    finally:
        os.close(fd)


def _check_owner(runtime_dir: Path) -> None:
    """Whoever else may write there could put sockets of his own in the place of ours."""
    status = runtime_dir.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        advice = "it must belong to the user that runs headrace, and nobody else may write it"
        raise ResourceError(f"{runtime_dir}: not safe for sockets: {advice}; set `runtime_dir` to one that is")


def _lock(fd: int, runtime_dir: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        advice = "stop it, or give this one a `runtime_dir` of its own"
        raise ResourceError(f"{runtime_dir}: another headrace (pid {holder}) is running there; {advice}") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)


def _sweep(runtime_dir: Path) -> None:
    for pattern in _LEFTOVERS:
        for path in runtime_dir.glob(pattern):
            path.unlink(missing_ok=True)
