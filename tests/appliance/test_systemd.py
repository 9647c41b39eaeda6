"""The service manager's protocols, against real sockets."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.systemd import Notifier, take_sockets, watchdog_interval_s


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """(NOTIFY_SOCKET, the manager's end)."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@headrace-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(10)
        sock.bind(address.replace("@", "\0"))
        yield address, sock


def test_each_state_is_one_datagram(manager: tuple[str, socket.socket]) -> None:
    address, sock = manager
    notifier = Notifier({"NOTIFY_SOCKET": address})
    notifier.ready("serving")
    assert sock.recv(1000) == b"READY=1\nSTATUS=serving"
    notifier.stopping("bye", 30.0)
    assert sock.recv(1000) == b"STOPPING=1\nSTATUS=bye\nEXTEND_TIMEOUT_USEC=45000000"
    notifier.status("one\ntwo")
    assert sock.recv(1000) == b"STATUS=one two"
    notifier.watchdog()
    assert sock.recv(1000) == b"WATCHDOG=1"


def test_reloading_carries_the_monotonic_time(manager: tuple[str, socket.socket]) -> None:
    address, sock = manager
    Notifier({"NOTIFY_SOCKET": address}).reloading("again")
    state, stamp, status = sock.recv(1000).decode().split("\n")
    assert (state, status) == ("RELOADING=1", "STATUS=again")
    assert int(stamp.removeprefix("MONOTONIC_USEC=")) > 0


def test_without_a_manager_nothing_happens(tmp_path: Path) -> None:
    Notifier({}).ready("serving")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready("serving")


@pytest.mark.parametrize(
    ("environ", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_fed_at_half_its_time(environ: dict[str, str], interval_s: float | None) -> None:
    assert watchdog_interval_s(environ, pid=7) == interval_s


def handed(*kinds: socket.SocketKind) -> int:
    """Sockets of these kinds on adjacent descriptors; the first of them."""
    first_fd = 200
    for offset, kind in enumerate(kinds):
        with socket.socket(socket.AF_INET, kind) as sock:
            sock.bind(("127.0.0.1", 0))
            os.dup2(sock.fileno(), first_fd + offset)
    return first_fd


def test_stream_sockets_are_taken_with_their_names_and_once() -> None:
    first_fd = handed(socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_STREAM)
    environ = {"LISTEN_FDS": "3", "LISTEN_PID": "7", "LISTEN_FDNAMES": "http:dns:https", "HOME": "/"}
    taken = take_sockets(environ, 7, first_fd)
    assert [(each.sock.fileno(), each.name) for each in taken] == [(first_fd, "http"), (first_fd + 2, "https")]
    assert not any(each.sock.get_inheritable() for each in taken)
    assert environ == {"HOME": "/"}
    assert take_sockets(environ, 7, first_fd) == []
    for each in taken:
        each.sock.close()


def test_sockets_for_another_process_are_left_alone() -> None:
    assert take_sockets({"LISTEN_FDS": "1", "LISTEN_PID": "8"}, 7) == []


def test_pings_that_fill_the_queue_do_not_keep_ready_from_a_manager_that_is_behind(
    manager: tuple[str, socket.socket],
) -> None:
    address, sock = manager
    notifier = Notifier({"NOTIFY_SOCKET": address})
    for _ in range(1000):  # far more than any queue holds: those that do not fit are dropped, and nobody waits
        notifier.watchdog()
    teller = threading.Thread(target=notifier.ready, args=["serving"])
    teller.start()
    while (heard := sock.recv(1000)) == b"WATCHDOG=1":
        pass
    teller.join()
    assert heard == b"READY=1\nSTATUS=serving"
