"""A server that drains: what has been answered leaves whole, however slowly it is taken; and what a request waits for
may be cancelled without the request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.device import Device
from engine.http.message import Request, Response
from engine.http.router import Router, get
from engine.http.stream import Stream
from engine.server import Server
from engine.serving import Serving
from tests.fakes_engine import fleet_of, until

LARGE = bytes(range(256)) * (1 << 14)
GET = b"GET /%b HTTP/1.1\r\n\r\n"


async def _large(request: Request) -> Response:
    return Response(LARGE)


async def _stream(request: Request) -> Stream:
    stream = request.begin({})
    await stream.end(b"one")
    return stream


async def _cancelled(request: Request) -> Response:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future
    return Response()


@contextlib.asynccontextmanager
async def server_of(directory: Path) -> AsyncIterator[tuple[Server, Serving, asyncio.StreamReader]]:
    """A server of these endpoints, and a client that has asked for the large answer and takes nothing of it."""
    device = Device("fake", [], asyncio.get_running_loop())
    serving = Serving(fleet_of(device), device, hang_s=30.0, max_body_bytes=1 << 20)
    server = Server(serving, str(directory / "s"))
    server._router = Router([get("/large", _large), get("/stream", _stream), get("/cancelled", _cancelled)])
    await server.open()
    reader, writer = await asyncio.open_unix_connection(str(directory / "s"))
    writer.write(GET % b"large")
    try:
        yield server, serving, reader
    finally:
        writer.close()
        await server.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_drain_waits_for_an_answer_to_be_taken_and_cuts_nothing_of_it(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, serving, reader):
        await until(lambda: serving.num_inside == 1)
        assert not await serving.drain(0.02)
        drain = asyncio.ensure_future(serving.drain(30.0))
        await reader.readuntil(b"\r\n\r\n")
        taken = b""
        while not drain.done():
            taken += await reader.read(1 << 16)
        assert await drain
        close = asyncio.ensure_future(server.close())  # the end of the answer is still on its way
        while piece := await reader.read(1 << 16):
            taken += piece
        assert taken == LARGE
        await close


async def test_what_is_not_taken_in_time_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.server._SHUT_S", 0.05)
    async with server_of(tmp_path) as (server, serving, reader):
        await until(lambda: serving.num_inside == 1)
        await server.close()
        await until(lambda: not server._connections)
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read()) < len(LARGE)
        assert not serving.num_inside


async def test_while_it_drains_a_stream_says_that_its_connection_ends(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (_, serving, _):
        serving.draining = True
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(GET % b"stream")
        assert b"Connection: close\r\n" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b"3\r\none\r\n0\r\n\r\n"
        writer.close()
        await writer.wait_closed()


async def test_a_request_whose_work_was_cancelled_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with server_of(tmp_path):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(GET % b"cancelled")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 500 ")
        writer.close()
        await writer.wait_closed()
    assert "GET /cancelled failed" in caplog.text
