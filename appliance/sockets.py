"""The listening sockets: bound once in the supervisor or adopted from systemd, and shared by all workers.

Binding and listening are two steps, so that a start can claim its addresses at once and take connections only when
there is somebody to answer them. A reload binds what is new beside what is there, and either keeps or forgets it.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from appliance.port_owner import find_port_owner
from appliance.resource_error import ResourceError
from appliance.systemd import Handed

BACKLOG = 4096  # the kernel caps it at net.core.somaxconn


class Sockets:
    """Open listening sockets by the address that the configuration gives them."""

    def __init__(self, handed: Iterable[Handed] = ()) -> None:
        self._handed = list(handed)  # systemd's: they stay open, since they could not be bound again
        self._open: dict[str, socket.socket] = {}
        self._fresh: set[str] = set()
        self._closed = False

    def prepare(self, addresses: Iterable[str]) -> None:
        """Open those that are not open yet. Raises ResourceError and leaves everything as it was."""
        if self._closed:
            raise ResourceError("no address is opened any more: headrace is stopping")
        problems = []
        for address in addresses:
            if address in self._open:
                continue
            try:
                self._open[address] = self._find_handed(address) or bind(address)
                self._fresh.add(address)
            except OSError as error:
                problems.append(explain(address, error))
        if problems:
            self.forget()
            raise ResourceError(*problems)

    def listen(self) -> None:
        """Take connections on all of them. Raises ResourceError if somebody else was faster."""
        for address, sock in self._open.items():
            try:
                sock.listen(BACKLOG)
            except OSError as error:
                raise ResourceError(explain(address, error)) from None

    def keep(self, addresses: Iterable[str]) -> None:
        """These are the ones in force; the others are closed."""
        for address in self._open.keys() - set(addresses):
            self._close(address)
        self._fresh.clear()

    def forget(self) -> None:
        """Close what the last ``prepare`` opened."""
        for address in self._fresh:
            self._close(address)
        self._fresh.clear()

    def select(self, addresses: Iterable[str]) -> list[int]:
        """The descriptors, in the order of the addresses."""
        return [self._open[address].fileno() for address in addresses]

    def duplicate(self, address: str) -> socket.socket:
        """A socket of the caller's own for the same address."""
        return self._open[address].dup()

    def close(self) -> None:
        """Close all, systemd's too, for good."""
        self._closed = True
        self.keep(())
        for handed in self._handed:
            handed.sock.close()

    def unused(self) -> list[str]:
        """What systemd has handed over and no listener wants."""
        wanted = {sock.fileno() for sock in self._open.values()}
        return [f"{each.sock.getsockname()} ({each.name})" for each in self._handed if each.sock.fileno() not in wanted]

    def _find_handed(self, address: str) -> socket.socket | None:
        for matches in (_is_at, _is_dual_at, _is_named):
            for handed in self._handed:
                if matches(handed, address):
                    return handed.sock
        return None

    def _close(self, address: str) -> None:
        sock = self._open.pop(address)
        if any(handed.sock is sock for handed in self._handed):
            return
        sock.close()
        if address.startswith("unix:"):
            Path(address.removeprefix("unix:")).unlink(missing_ok=True)


def bind(address: str) -> socket.socket:
    """A socket bound to ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:/PATH``, not listening yet. Raises OSError."""
    if address.startswith("unix:"):
        return _bind_unix(address.removeprefix("unix:"))
    host, port = split(address)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, where = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # 0.0.0.0 has a listener of its own
        sock.bind(where)
    except OSError:
        sock.close()
        raise
    return sock


def split(address: str) -> tuple[str, int]:
    """(host without brackets, port) of ``HOST:PORT``."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def explain(address: str, error: OSError) -> str:
    """What is wrong with the address, and what to do."""
    is_port = not address.startswith("unix:")
    match error.errno:
        case errno.EADDRINUSE:
            owner = (find_port_owner(split(address)[1]) if is_port else None) or "another process"
            return f"address {address} is in use (by {owner}): stop that process or change the listener's address"
        case errno.EACCES | errno.EPERM if is_port:
            advice = "a port below 1024 needs root, CAP_NET_BIND_SERVICE, or systemd/headrace.socket"
            return f"address {address} may not be bound: {advice}"
        case errno.EADDRNOTAVAIL:
            return f"address {address} does not belong to this machine: see `ip address`"
        case _:
            return f"address {address} cannot be bound: {error.strerror or error}"


def _bind_unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        if os.path.exists(path) and sock.connect_ex(path) == errno.ECONNREFUSED:
            os.unlink(path)  # left behind by a process that was killed
        sock.close()
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(path)
    except OSError:
        sock.close()
        raise
    return sock


def _is_at(handed: Handed, address: str) -> bool:
    name = handed.sock.getsockname()
    if address.startswith("unix:"):
        return bool(name == address.removeprefix("unix:"))
    return isinstance(name, tuple) and name[:2] == split(address)


def _is_dual_at(handed: Handed, address: str) -> bool:
    """systemd opens a bare port as [::], for both families."""
    host, _, port = address.rpartition(":")
    name = handed.sock.getsockname()
    return host == "0.0.0.0" and handed.sock.family == socket.AF_INET6 and name[:2] == ("::", int(port))  # noqa: S104


def _is_named(handed: Handed, address: str) -> bool:
    """``FileDescriptorName=443`` in the socket unit: for the listener on that port, wherever the unit binds it."""
    return not address.startswith("unix:") and handed.name == address.rpartition(":")[2]
