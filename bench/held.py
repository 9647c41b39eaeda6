"""Connections that are opened and held: idle ones, and ones whose other end is stuck.

Owns opening them and that they are what they are called: each raises SystemExit if the proxy answered otherwise, or
ended them. A context each, for as long as they are to be held. quiet_s: what has not moved for so long is stuck.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from bench.tls import trusting

TIMEOUT_S = 20.0
_SMALL_BUFFER = 65536  # so that it is not the kernel that takes what is sent
_UPLOAD_BYTES = 64 << 20


@contextmanager
def idle(port: int, num: int, *, certificates: str | None = None) -> Iterator[None]:
    """Each has had one answer and is kept alive."""
    with _open(port, num, certificates) as connections:
        for connection in connections:
            connection.sendall(_request("GET", "/"))
            answer = b""
            while len(answer.partition(b"\r\n\r\n")[2]) < 128 and (more := connection.recv(65536)):
                answer += more
            if not answer.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"an idle connection was answered {answer[:400]!r}")
        yield
        _require(connections, lambda peeked: peeked is None, "an idle connection was closed by the proxy")


@contextmanager
def unread(port: int, path: str, num: int, *, quiet_s: float, certificates: str | None = None) -> Iterator[None]:
    """Each has asked for ``path`` and reads none of the answer."""
    with _open(port, num, certificates) as connections:
        for connection in connections:
            connection.sendall(_request("GET", path))
        if certificates is None:
            with suppress(TimeoutError):
                for connection in connections:
                    connection.recv(1, socket.MSG_PEEK)
        time.sleep(quiet_s)
        yield
        if certificates is None:
            _require(connections, lambda peeked: (peeked or b"").startswith(b"HTTP/1.1 200"), "no answer was begun")


@contextmanager
def uploading(port: int, num: int, *, quiet_s: float) -> Iterator[None]:
    """Each has sent as much of an upload as is taken, to an upstream that reads none of it."""
    piece = b"x" * _SMALL_BUFFER
    with _open(port, num, None) as connections:
        sent = dict.fromkeys(connections, 0)
        for connection in connections:
            connection.sendall(_request("POST", "/deaf", f"Content-Length: {_UPLOAD_BYTES}\r\n"))
            connection.setblocking(False)
        moved_at = begun_at = time.monotonic()
        while time.monotonic() - moved_at < quiet_s and time.monotonic() - begun_at < TIMEOUT_S:
            if max(sent.values()) >= _UPLOAD_BYTES:
                raise SystemExit(
                    f"an upload of {_UPLOAD_BYTES} bytes to an upstream that reads nothing was taken whole"
                )
            for connection in connections:
                try:
                    sent[connection] += connection.send(piece[: _UPLOAD_BYTES - sent[connection]])
                except BlockingIOError:
                    continue
                except OSError as problem:
                    raise SystemExit(f"an upload was ended by the proxy: {problem}") from None
                moved_at = time.monotonic()
            time.sleep(0.01)
        yield
        _require(connections, lambda peeked: peeked is None, "an upload was answered or closed by the proxy")


@contextmanager
def _open(port: int, num: int, certificates: str | None) -> Iterator[list[socket.socket]]:
    trust = trusting(certificates) if certificates is not None else None
    connections: list[socket.socket] = []
    try:
        for _ in range(num):
            connections.append(_connect(port, trust))
        yield connections
    finally:
        for connection in connections:
            connection.close()


def _connect(port: int, trust: ssl.SSLContext | None) -> socket.socket:
    connection = socket.socket()
    connection.settimeout(TIMEOUT_S)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SMALL_BUFFER)
    connection.connect(("127.0.0.1", port))
    return connection if trust is None else trust.wrap_socket(connection, server_hostname="localhost")


def _request(method: str, path: str, fields: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode()


def _require(connections: list[socket.socket], is_so: Callable[[bytes | None], bool], otherwise: str) -> None:
    """Looks at what has arrived on each without reading it; None: nothing. TLS connections cannot be looked at."""
    for connection in connections:
        if isinstance(connection, ssl.SSLSocket):
            continue
        connection.setblocking(False)
        try:
            peeked: bytes | None = connection.recv(16, socket.MSG_PEEK)
        except BlockingIOError:
            peeked = None
        except OSError:
            peeked = b""
        if not is_so(peeked):
            raise SystemExit(f"{otherwise}: {peeked!r}")
