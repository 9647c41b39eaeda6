"""What ``proxy.downstream`` relies on inside aiohttp: every private name, and the behaviours that no document promises.

A failure here after an upgrade of aiohttp means: read its diff of web_protocol.py, base_protocol.py, streams.py and
_http_parser.pyx before anything else.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
from pathlib import Path

import pytest
from aiohttp import http_parser, web, web_protocol
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler

from proxy import downstream
from proxy.downstream import ClientConnection, EdgeServer, require_c_parser
from tests.proxy.make import proxy_config

HEAD = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


async def make() -> ClientConnection:
    """A connection that nobody made yet."""
    limits = proxy_config().listeners[0].limits

    def serve(*_: object) -> None:
        return None

    connection = EdgeServer(serve, limits, scheme="http")()
    assert isinstance(connection, ClientConnection)
    return connection


def private_names_used() -> set[str]:
    """Every ``self._name`` (or ``server._name``) in downstream.py that the file does not define itself."""
    tree = ast.parse(Path(downstream.__file__).read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")}
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return used - defined - set(ClientConnection.__slots__) - {"__init__"}


KNOWN = {
    "_buffer_paused", "_connections", "_loop", "_max_msg_queue_size", "_messages", "_msg_queue_resume_size", "_parser",
    "_pause_reading_for_buffer", "_reading_paused", "_resume_reading_if_drained", "_resume_transport_reading",
    "_task_handler", "_waiter",
}  # fmt: skip


async def test_every_private_name_used_is_known_here_and_exists() -> None:
    assert private_names_used() == KNOWN
    connection = await make()
    for name in KNOWN - {"_connections"}:
        assert hasattr(connection, name), name
    assert hasattr(connection.server, "_connections")


def test_only_downstream_knows_private_names_of_aiohttp() -> None:
    for path in Path(downstream.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aiohttp"):
                assert path.name == "downstream.py" or not any(alias.name.startswith("_") for alias in node.names), path


def test_the_c_parser_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    require_c_parser()
    monkeypatch.setattr(http_parser, "HttpRequestParser", http_parser.HttpRequestParserPy)
    with pytest.raises(RuntimeError, match="C parser"):
        require_c_parser()


def test_the_signatures_that_are_called() -> None:
    parameters = inspect.signature(RequestHandler.__init__).parameters
    for name in ("keepalive_timeout", "access_log", "max_line_size", "max_headers", "max_field_size", "read_bufsize",
                 "auto_decompress"):  # fmt: skip
        assert name in parameters, name
    assert "handler" in inspect.signature(web.Server.__init__).parameters
    for name in ("connection_made", "connection_lost", "data_received", "start", "pause_writing", "resume_writing"):
        assert callable(getattr(RequestHandler, name))
    assert isinstance(BaseProtocol.writing_paused, property)
    for name in ("is_eof", "readany", "read_nowait", "set_exception", "feed_eof"):
        assert callable(getattr(StreamReader, name))


async def test_start_is_what_a_new_connection_runs() -> None:
    source = inspect.getsource(RequestHandler.connection_made)
    assert "self.start()" in source
    assert "if self._keepalive_timeout > 0" in source  # so that 0 starts no timer


async def test_parsed_heads_are_queued_with_their_bodies() -> None:
    connection = await make()
    RequestHandler.data_received(connection, HEAD + b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nab")
    (first, empty), (second, body) = connection._messages
    assert (first.method, first.path, tuple(first.version)) == ("GET", "/a", (1, 1))
    assert first.raw_headers == ((b"Host", b"x"),)
    assert (first.should_close, first.upgrade, bool(second.chunked)) == (False, False, False)
    assert empty is EMPTY_PAYLOAD
    assert empty.is_eof()
    assert (body.is_eof(), body.total_bytes, body.read_nowait()) == (False, 2, b"ab")
    RequestHandler.data_received(connection, b"c")
    assert body.is_eof()


async def test_a_parser_error_is_queued_as_err_info() -> None:
    connection = await make()
    RequestHandler.data_received(connection, b"nonsense\r\n\r\n")
    ((error, _),) = connection._messages
    assert isinstance(error, web_protocol._ErrInfo)
    assert isinstance(error.exc, HttpProcessingError)


async def test_line_too_long_carries_the_limit_it_was_held_to() -> None:
    connection = await make()
    RequestHandler.data_received(connection, b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    error = connection._messages[0][0].exc
    assert isinstance(error, LineTooLong)
    assert error.args[1] == connection.server.limits.line


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 200 + b"\r\n", "Too many headers received"),
        (b"\x16\x03\x01\x02\x00", "Received HTTPS traffic on an HTTP port"),
    ],
)
async def test_the_messages_that_are_told_apart_by_their_text(raw: bytes, message: str) -> None:
    connection = await make()
    RequestHandler.data_received(connection, raw)
    assert connection._messages[0][0].exc.message == message


async def test_bodies_arrive_encoded() -> None:
    connection = await make()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n"
    RequestHandler.data_received(connection, head + b"abc")
    assert connection._messages[0][1].read_nowait() == b"abc"


async def test_no_timer_runs_for_an_idle_connection() -> None:
    connection = await make()
    assert connection._keepalive_timeout == 0
    assert connection._keepalive_handle is None


async def test_the_queue_of_parsed_heads_is_bounded() -> None:
    connection = await make()
    RequestHandler.data_received(connection, HEAD * 100)
    assert len(connection._messages) == web_protocol.MAX_MSG_QUEUE_SIZE == 32
    assert connection._buffer_paused
    connection._busy = True  # so that none is served
    for _ in range(20):
        connection._messages.popleft()
        connection._parser.message_consumed()
    connection._resume_reading_if_drained()
    assert len(connection._messages) == 32


async def test_lost_connections_leave_no_task() -> None:
    connection = await make()
    before = asyncio.all_tasks()

    class Transport(asyncio.Transport):
        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

        def close(self) -> None: ...

    connection.connection_made(Transport())
    assert len(asyncio.all_tasks()) == len(before) + 1
    await asyncio.sleep(0)
    connection.connection_lost(None)
    async with asyncio.timeout(5):
        while asyncio.all_tasks() != before or connection.server.open:  # noqa: ASYNC110
            await asyncio.sleep(0)
