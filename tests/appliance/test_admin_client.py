"""Calls over the admin socket, when nobody or a stranger answers."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from appliance.admin_client import SOCKET_NAME, call


def answer_once(runtime_dir: Path, answer: bytes) -> threading.Thread:
    """Somebody who takes one request on the socket and answers so."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(runtime_dir / SOCKET_NAME))
    server.listen()

    def serve() -> None:
        with server, server.accept()[0] as client:
            request = b""  # head and body come apart: who closes before the last piece breaks the caller's pipe
            while not request.endswith(b"}"):
                request += client.recv(65536)
            client.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        call(tmp_path, "status")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / SOCKET_NAME))
    with pytest.raises(ConnectionRefusedError):
        call(tmp_path, "status")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "broke off"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 3\r\n\r\nwhy", "answered 500 to reload: why"),
    ],
)
def test_no_answer_worth_the_name(tmp_path: Path, answer: bytes, message: str) -> None:
    thread = answer_once(tmp_path, answer)
    with pytest.raises(ConnectionError, match=message):
        call(tmp_path, "reload", wait=True)
    thread.join()


def test_the_answer_is_json(tmp_path: Path) -> None:
    thread = answer_once(tmp_path, b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"ok":true}')
    assert call(tmp_path, "stop") == {"ok": True}
    thread.join()
