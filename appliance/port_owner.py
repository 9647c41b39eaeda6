"""Who listens on a TCP port of this machine, as far as /proc tells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_LISTEN = "0A"  # the state as /proc/net/tcp writes it


def find_port_owner(port: int, proc: Path = Path("/proc")) -> str | None:
    """ "nginx, pid 812" for the first process found that listens on ``port``; None if it may not be seen."""
    links = {f"socket:[{inode}]" for inode in _listening_inodes(port, proc)}
    for process in sorted(proc.glob("[0-9]*")) if links else ():
        try:
            if any(os.readlink(fd) in links for fd in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()}, pid {process.name}"
        except OSError:
            continue  # another user's, or gone meanwhile
    return None


def _listening_inodes(port: int, proc: Path) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]
