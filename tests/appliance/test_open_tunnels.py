"""A WebSocket, a stream and an upload that are open while the configuration is reloaded in every way, and at a stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.appliance.served import EVENT, STREAM_HEAD, TIMEOUT_S, Served, Stream
from tests.wire.websocket import AGREE, ASK

UPLOAD_PIECES = 40
PIECE = b"x" * 1000


@asynccontextmanager
async def mixed_upstream() -> AsyncIterator[int]:
    """The port of an upstream that echoes in a WebSocket, tells how long an upload was, and else streams events."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b"upgrade: websocket" in head:
                writer.write(AGREE + b"\r\n")
                while data := await reader.read(4096):
                    writer.write(data)
            elif head.startswith(b"post "):
                body = await reader.readexactly(UPLOAD_PIECES * len(PIECE))
                text = b"%d" % body.count(b"x")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
            else:
                writer.write(STREAM_HEAD)
                while True:
                    writer.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
                    await writer.drain()
                    await asyncio.sleep(0.02)
        writer.close()
        tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in set(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def upstream() -> AsyncIterator[int]:
    async with mixed_upstream() as port:
        yield port


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    running = Served(tmp_path)
    yield running
    await running.close()


def write(served: Served, routes: str, upstreams: str, drain: str = "20s") -> None:
    served.file.write_text(f"""
runtime_dir: {served.runtime_dir}
admin: {{address: 127.0.0.1:{served.admin_port}}}
log: {{access: "off"}}
workers: 2
drain: {drain}
listeners: [{{address: "127.0.0.1:{served.port}"}}]
upstreams: {upstreams}
routes: {routes}
""")


async def tunnel(served: Served) -> Stream:
    """A WebSocket that is agreed upon."""
    stream = await served.connect()
    stream.writer.write(ASK + b"\r\n")
    head = await asyncio.wait_for(stream.reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
    assert head.startswith(b"HTTP/1.1 101 ")
    return stream


async def echoes(stream: Stream, text: bytes) -> None:
    stream.writer.write(text)
    assert await asyncio.wait_for(stream.reader.readexactly(len(text)), TIMEOUT_S) == text


async def test_J01_a_websocket_a_stream_and_an_upload_outlive_reloads_that_change_and_remove_what_they_use(
    served: Served, upstream: int
) -> None:
    app = f"{{app: {{servers: ['http://127.0.0.1:{upstream}']}}}}"
    route = "{match: {path: /*}, to: app, websocket: {idle: 1h}}"
    write(served, f"[{route}]", app)
    await served.start()
    before = await served.pids()
    socket, stream, upload = await tunnel(served), await served.stream(), await served.connect()
    upload.writer.write(b"POST /up HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (UPLOAD_PIECES * len(PIECE)))
    num_sent = 0
    changes = [
        (f"[{route}, {{match: {{path: /unrelated}}, respond: {{status: 204}}}}]", app),
        ("[{match: {path: /*}, to: app, websocket: {idle: 2h}, timeouts: {idle: 50s}}]", app),
        *[(f"[{route}, {{match: {{path: /n{i}}}, respond: {{status: 204}}}}]", app) for i in range(20)],
        ("[{match: {path: /*}, respond: {status: 204}}]", "{}"),  # the upstream goes
    ]
    for i, (routes, upstreams) in enumerate(changes):
        write(served, routes, upstreams)
        assert (await served.ask("reload", wait=True))["ok"]
        upload.writer.write(PIECE)
        num_sent += 1
        await echoes(socket, b"\x81\x85\0\0\0\0%05d" % i)
        await stream.event()
    assert await served.status_of("/") == 204
    upload.writer.write(PIECE * (UPLOAD_PIECES - num_sent))
    answer = await asyncio.wait_for(upload.reader.readuntil(b"40000"), TIMEOUT_S)
    assert answer.startswith(b"HTTP/1.1 200 ")
    await echoes(socket, b"\x81\x80\0\0\0\0")
    assert await served.pids() == before


async def test_J02_a_reload_returns_and_a_stop_ends_though_a_websocket_stays_open(
    served: Served, upstream: int
) -> None:
    app = f"{{app: {{servers: ['http://127.0.0.1:{upstream}']}}}}"
    write(served, "[{to: app, websocket: {idle: 1h}}]", app, drain="1s")
    await served.start()
    socket = await tunnel(served)
    write(served, "[{to: app, websocket: {idle: 2h}}]", app, drain="1s")
    assert (await served.ask("reload", wait=True))["ok"]
    await echoes(socket, b"\x81\x80\0\0\0\0")
    served.signal(signal.SIGTERM)
    assert await served.wait() == 0
    assert await socket.rest() == b""
