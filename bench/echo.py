"""What tensors are compared with: an echo behind the same proxy, and bytes that are only copied.

    python bench/echo.py aiohttp SOCKET            an echo of bodies, as one writes it with aiohttp
    python bench/echo.py copy PORT                 a relay and an echo that copy and do nothing else

The copy goes the way of a request: over TCP to a relay, from there over a unix socket to another process, which has the
whole body before it sends it back. Both are threads with blocking sockets and large buffers.
"""

from __future__ import annotations

import re
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Process

import uvloop
from aiohttp import web

_PIECE_BYTES = 1 << 18


async def echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read(), content_type="application/octet-stream")


def serve_aiohttp(path: str) -> None:
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/{path:.*}", echo)
    web.run_app(app, path=path, loop=uvloop.new_event_loop(), access_log=None, print=lambda *_: None)


def serve_copy(port: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        behind = socket.socket(socket.AF_UNIX)
        behind.bind(f"{directory}/s")
        behind.listen(128)
        Process(target=_accept, args=(behind, _answer), daemon=True).start()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that the process ends with this one

        def relay(client: socket.socket) -> None:
            with socket.socket(socket.AF_UNIX) as server:
                server.connect(f"{directory}/s")
                threading.Thread(target=_pump, args=(server, client), daemon=True).start()
                _pump(client, server)

        _accept(socket.create_server(("127.0.0.1", port), backlog=128), relay)


def _accept(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    while True:
        connection, _ = listener.accept()
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_run, args=(connection, serve), daemon=True).start()


def _run(connection: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    with connection, suppress(OSError):
        serve(connection)


def _pump(source: socket.socket, target: socket.socket) -> None:
    piece = memoryview(bytearray(_PIECE_BYTES))
    with suppress(OSError):
        while num_read := source.recv_into(piece):
            target.sendall(piece[:num_read])
        target.shutdown(socket.SHUT_WR)


def _answer(connection: socket.socket) -> None:
    """Bodies back as they came, one request after another."""
    head = b""
    while data := connection.recv(_PIECE_BYTES):
        head += data
        if b"\r\n\r\n" not in head:
            continue
        head, _, begin = head.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        body = memoryview(bytearray(int(length[1]) if length else 0))
        have = len(begin)
        body[:have] = begin
        while have < len(body):
            if not (num_read := connection.recv_into(body[have:])):
                return
            have += num_read
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        connection.sendall(body)
        head = b""


if __name__ == "__main__":
    if sys.argv[1] == "aiohttp":
        serve_aiohttp(sys.argv[2])
    else:
        serve_copy(int(sys.argv[2]))
