"""What ``proxy.downstream`` relies on inside aiohttp: its parser and body readers, and what no document promises.

A failure here after an upgrade of aiohttp means: read its diff of streams.py and _http_parser.pyx before anything else.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
from aiohttp import http_parser
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from proxy import downstream
from proxy.downstream import MAX_QUEUED, ClientConnection, require_c_parser
from proxy.edge_server import EdgeServer
from tests.proxy.make import proxy_config

HEAD = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


class Transport(asyncio.Transport):
    """Takes everything; counts how often reading was paused and resumed."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self.closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None: ...

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


async def make(served: list[Any] | None = None) -> ClientConnection:
    """A connection that is made, and whose requests are never answered; they go to ``served``."""
    limits = proxy_config().listeners[0].limits

    def serve(_client: ClientConnection, message: Any, body: Any) -> None:
        if served is not None:
            served.append((message, body))

    connection = ClientConnection(EdgeServer(serve, limits, scheme="http"))
    connection.connection_made(Transport())
    return connection


def parser() -> Any:
    class Owner:
        connected = True

        def pause_reading(self) -> None: ...

        def resume_reading(self, resume_parser: bool = True) -> None: ...

    return http_parser.HttpRequestParser(
        Owner(),  # type: ignore[arg-type]
        asyncio.get_running_loop(),
        65536,
        max_line_size=16384,
        max_headers=128,
        max_field_size=16385,
        auto_decompress=False,
        max_msg_queue_size=MAX_QUEUED,
    )


def test_no_file_imports_private_names_of_aiohttp() -> None:
    for path in Path(downstream.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aiohttp"):
                assert not any(alias.name.startswith("_") for alias in node.names), path


def test_the_c_parser_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    require_c_parser()
    monkeypatch.setattr(http_parser, "HttpRequestParser", http_parser.HttpRequestParserPy)
    with pytest.raises(RuntimeError, match="C parser"):
        require_c_parser()


def test_the_methods_that_are_called() -> None:
    for name in ("is_eof", "readany", "read_nowait", "set_exception", "feed_eof"):
        assert callable(getattr(StreamReader, name))
    for name in ("feed_data", "message_consumed", "pause_reading"):
        assert callable(getattr(http_parser.HttpRequestParser, name))


def test_body_readers_call_no_more_of_their_connection_than_it_has() -> None:
    source = ast.parse(inspect.getsource(inspect.getmodule(StreamReader)))  # type: ignore[arg-type]
    reader = next(n for n in source.body if isinstance(n, ast.ClassDef) and n.name == "StreamReader")
    called = {
        node.attr
        for node in ast.walk(reader)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "_protocol"
    }
    assert called == {"connected", "pause_reading", "resume_reading"}
    for name in called:
        assert hasattr(ClientConnection, name)


async def test_heads_are_parsed_with_their_bodies() -> None:
    read = parser()
    messages, upgraded, _ = read.feed_data(HEAD + b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nab")
    (first, empty), (second, body) = messages
    assert (first.method, first.path, tuple(first.version)) == ("GET", "/a", (1, 1))
    assert first.raw_headers == ((b"Host", b"x"),)
    assert (first.should_close, first.upgrade, bool(second.chunked), upgraded) == (False, False, False, False)
    assert empty is EMPTY_PAYLOAD
    assert empty.is_eof()
    assert (body.is_eof(), body.total_bytes, body.read_nowait()) == (False, 2, b"ab")
    read.feed_data(b"c")
    assert body.is_eof()


async def test_what_is_malformed_is_raised() -> None:
    with pytest.raises(HttpProcessingError):
        parser().feed_data(b"nonsense\r\n\r\n")


async def test_line_too_long_carries_the_limit_it_was_held_to() -> None:
    with pytest.raises(LineTooLong) as caught:
        parser().feed_data(b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert caught.value.args[1] == 16384


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 200 + b"\r\n", "Too many headers received"),
        (b"\x16\x03\x01\x02\x00", "Received HTTPS traffic on an HTTP port"),
    ],
)
async def test_the_messages_that_are_told_apart_by_their_text(raw: bytes, message: str) -> None:
    with pytest.raises(HttpProcessingError) as caught:
        parser().feed_data(raw)
    assert caught.value.message == message


async def test_bodies_arrive_encoded() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n"
    ((_, body),), _, _ = parser().feed_data(head + b"abc")
    assert body.read_nowait() == b"abc"


async def test_an_upgrade_is_told_with_what_came_behind_it() -> None:
    head = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    ((message, _),), upgraded, tail = parser().feed_data(head + b"\x81\x00")
    assert (message.upgrade, upgraded, tail) == (True, True, b"\x81\x00")


async def test_the_queue_of_parsed_heads_is_bounded() -> None:
    served: list[Any] = []
    connection = await make(served)
    transport = connection.transport
    assert isinstance(transport, Transport)
    connection.data_received(HEAD * 100)
    assert len(served) == 1
    assert transport.paused
    for _ in range(99):
        connection.answered(True, 0.0)
    assert len(served) == 100
    assert not transport.paused


async def test_a_full_body_pauses_the_client_until_it_is_read() -> None:
    served: list[Any] = []
    connection = await make(served)
    transport = connection.transport
    assert isinstance(transport, Transport)
    connection.data_received(b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 200000)
    ((_, body),) = served
    assert transport.paused
    received = 0
    while received < 200000:
        received += len(await body.read())
    assert not transport.paused


async def test_a_connection_without_work_has_neither_task_nor_timer() -> None:
    before = asyncio.all_tasks()
    connection = await make()
    assert asyncio.all_tasks() == before
    assert connection.server.open == {connection}
    connection.connection_lost(None)
    assert not connection.server.open
