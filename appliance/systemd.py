"""The service manager's protocols: readiness and watchdog (sd_notify(3)), sockets handed over (sd_listen_fds(3)).

Own code, since all there is to it is a datagram and three variables. Without systemd every call does nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

FIRST_FD = 3
_STOP_GRACE_S = 15.0  # for what comes after the drain
_HEARD_WITHIN_S = 1.0  # for what must not be lost because pings fill the manager's queue
#: What children must not inherit: they would speak for the supervisor, or take its sockets for theirs.
PRIVATE_VARIABLES = ("LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")


class Notifier:
    """Tells the service manager how the service is."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def ready(self, status: str) -> None:
        """The start, or a reload, is over."""
        self._send("READY=1", f"STATUS={status}", within_s=_HEARD_WITHIN_S)

    def reloading(self, status: str) -> None:
        """A reload begins; ``ready`` ends it."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}", f"STATUS={status}", within_s=_HEARD_WITHIN_S)

    def stopping(self, status: str, within_s: float) -> None:
        """The end has begun. The manager waits for it if need be longer than its unit says."""
        longest_us = int((within_s + _STOP_GRACE_S) * 1e6)
        self._send("STOPPING=1", f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={longest_us}", within_s=_HEARD_WITHIN_S)

    def status(self, status: str) -> None:
        """One line for ``systemctl status``."""
        self._send(f"STATUS={status}")

    def watchdog(self) -> None:
        """The supervisor's loop turns."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str, within_s: float = 0.0) -> None:
        """within_s: how long a manager that is behind may keep us waiting; then it is not told."""
        if not self._address:
            return
        text = "\n".join(line.replace("\n", " ") for line in lines)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(within_s)
            try:
                sock.sendto(text.encode(errors="replace"), self._address)
            except OSError:
                return  # a manager that does not listen is no reason not to serve


def watchdog_interval_s(environ: Mapping[str, str], pid: int) -> float | None:
    """Half of the time after which the manager takes us for hung; None: it does not watch this process."""
    limit_us = environ.get("WATCHDOG_USEC", "")
    if not limit_us.isdigit() or int(limit_us) == 0 or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(limit_us) / 2e6


@dataclass(frozen=True, slots=True)
class Handed:
    """A listening socket that the manager has opened, and the name that its unit gave it."""

    sock: socket.socket
    name: str


def take_sockets(environ: MutableMapping[str, str], pid: int, first_fd: int = FIRST_FD) -> list[Handed]:
    """The stream sockets that were handed to this process; a second call finds none. Others are closed."""
    number, owner = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if owner != str(pid) or not number.isdigit():
        return []
    handed = []
    for index in range(int(number)):
        fd = first_fd + index
        os.set_inheritable(fd, False)
        try:
            sock = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)  # a FIFO or a device: nothing that a listener could use
            continue
        if sock.type == socket.SOCK_STREAM:
            handed.append(Handed(sock, names[index] if index < len(names) else ""))
        else:
            sock.close()
    return handed
