"""A client that says what it wants, byte by byte, and the server that it says it to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

from engine.errors import RequestError
from engine.http.connection import Connection, Handler
from engine.http.message import Request, Response

GET = b"GET /a?x=1 HTTP/1.1\r\nHost: e\r\n\r\n"


class Client:
    """One that says what it wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def head(self) -> tuple[bytes, dict[str, str]]:
        """The status line, and the header by lower-case names."""
        line, *fields = (await self.reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        pairs = (field.decode().partition(": ") for field in fields)
        return line, {name.lower(): value for name, _, value in pairs}

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of a whole answer."""
        line, headers = await self.head()
        return int(line.split()[1]), await self.reader.readexactly(int(headers["content-length"]))


class Inside:
    """How many requests are."""

    def __init__(self) -> None:
        self.num = 0

    def enter(self) -> None:
        self.num += 1

    def leave(self) -> None:
        self.num -= 1


@contextlib.asynccontextmanager
async def client_of(directory: Path, handler: Handler) -> AsyncIterator[Client]:
    """A client of a server with this handler; nothing of it is left afterwards."""
    connections: set[Connection] = set()
    inside = Inside()
    make = cast(Callable[[], asyncio.BaseProtocol], lambda: Connection(handler, connections, inside))
    server = await asyncio.get_running_loop().create_unix_server(make, str(directory / "s"))
    reader, writer = await asyncio.open_unix_connection(str(directory / "s"), limit=1 << 24)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        for each in tuple(connections):
            if (task := each.shut()) is not None:
                await asyncio.wait([task])
        server.close()
        await server.wait_closed()
        for _ in range(10):  # turns of the loop, in which transports are closed
            await asyncio.sleep(0)
        assert not connections
        assert not inside.num


async def collect(request: Request) -> bytes:
    """The whole body."""
    pieces = request.body.take()
    while not request.body.complete:
        await request.body.wait()
        pieces += request.body.take()
    return b"".join(pieces)


async def echo(request: Request) -> Response:
    """What came, in words and as it was."""
    try:
        body = await collect(request)
    except RequestError as error:
        return Response(error.message.encode(), status=error.kind.status)
    return Response([f"{request.method} {request.path} {request.query} ".encode(), memoryview(body)], "text/plain")
