"""Clients of every kind at once, each at its pace: the load of bench/soak.py, against bench/mixed_origin.py.

Owns the kinds and what each expects; counts what ended as expected and what did not.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bench.peers import Running
from bench.tls import trusting

TIMEOUT_S = 20.0
DESCRIPTION = (
    "each second about 200 small answers, 20 of 64 KiB, 10 uploads of 256 KiB, 20 small ones over TLS, 5 new event "
    "streams that are left after a second or so, 10 failures of the upstream, 5 requests broken off, 5 refused"
)


@dataclass
class Count:
    """How many of a kind ended as they should, and how many otherwise (the first few in words)."""

    ended: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class Where:
    """Where the clients connect."""

    port: int
    tls_port: int
    trust: ssl.SSLContext

    async def connect(self, tls: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection."""
        if not tls:
            return await asyncio.open_connection("127.0.0.1", self.port)
        return await asyncio.open_connection("127.0.0.1", self.tls_port, ssl=self.trust, server_hostname="localhost")


Kind = Callable[[Where, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def asking(
    path: str, *statuses: int, body: bytes | None = None, method: str = "GET", length: int | None = None
) -> Kind:
    """A request whose whole answer has one of the statuses and, where it is given, the length."""

    async def ask(where: Where, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fields = "" if body is None else f"Content-Length: {len(body)}\r\n"
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode() + (body or b""))
        status, text = await _answer(reader)
        if status not in statuses or (length is not None and len(text) != length):
            raise RuntimeError(f"{method} {path}: {status} with {len(text)} bytes")

    return ask


async def watching(where: Where, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A stream of events whose client leaves in the middle."""
    writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    if b" 200 " not in await reader.readuntil(b"\r\n\r\n"):
        raise RuntimeError("no stream of events")
    until = time.monotonic() + random.uniform(0.2, 2)
    while time.monotonic() < until:
        if b"data: " not in await reader.readuntil(b"\n\n"):
            raise RuntimeError("no event")
    writer.transport.abort()


async def breaking_off(where: Where, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A client that leaves in its request, before its answer or in it."""
    ways = (
        b"GET /sl",
        b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /1000000 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nsome",
    )
    writer.write(random.choice(ways))
    await asyncio.sleep(0.05)
    writer.transport.abort()


async def truncated(where: Where, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer that breaks off at the upstream, and must not look complete here."""
    writer.write(b"GET /short HTTP/1.1\r\nHost: localhost\r\n\r\n")
    try:
        status, text = await _answer(reader)
    except (OSError, asyncio.IncompleteReadError):
        return
    if status == 200:
        raise RuntimeError(f"a truncated answer of {len(text)} bytes looked complete")


#: name -> (requests a second, over TLS, requests on one connection, what each does)
KINDS: dict[str, tuple[float, bool, int, Kind]] = {
    "small": (200, False, 100, asking("/128", 200, length=128)),
    "64 KiB": (20, False, 20, asking("/65536", 200, length=65536)),
    "upload": (10, False, 10, asking("/upload", 200, method="POST", body=b"x" * 262144, length=6)),
    "TLS": (20, True, 10, asking("/128", 200, length=128)),
    "events, left": (5, False, 1, watching),
    "upstream 503": (4, False, 10, asking("/503", 503)),
    "upstream resets": (2, False, 1, asking("/reset", 502, 503)),
    "upstream truncates": (4, False, 1, truncated),
    "broken off": (5, False, 1, breaking_off),
    "refused": (5, False, 1, asking("/", 400, 405, 431, 501, method="BAD METHOD")),
}


async def run(running: Running, certificates: str, seconds: float) -> dict[str, Count]:
    """All kinds for so long; what became of each."""
    where = Where(running.plain_port, running.port, trusting(certificates))
    counts = {name: Count() for name in KINDS}
    end_at = time.monotonic() + seconds
    await asyncio.gather(*(_repeat(where, *KINDS[name], count, end_at) for name, count in counts.items()))
    return counts


async def _repeat(
    where: Where, per_s: float, tls: bool, num_kept: int, kind: Kind, count: Count, end_at: float
) -> None:
    """Starts a connection's worth of requests whenever they are due, without waiting for those under way."""
    under_way: set[asyncio.Task[None]] = set()
    due_at = time.monotonic()
    while time.monotonic() < end_at:
        if len(under_way) < 100:  # the proxy is not to be drowned where the machine is slow
            task = asyncio.create_task(_connection(where, tls, num_kept, per_s, kind, count, end_at))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        due_at = max(due_at + num_kept / per_s, time.monotonic() - 1)
        await asyncio.sleep(max(0.0, min(due_at, end_at) - time.monotonic()))
    await asyncio.gather(*under_way)


async def _connection(
    where: Where, tls: bool, num_kept: int, per_s: float, kind: Kind, count: Count, end_at: float
) -> None:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await where.connect(tls)
    except OSError as problem:
        _note(count, problem)
        return
    try:
        for _ in range(num_kept):
            async with asyncio.timeout(TIMEOUT_S):
                await kind(where, reader, writer)
            count.ended += 1
            if time.monotonic() >= end_at:
                break
            await asyncio.sleep(random.uniform(0, 2 / per_s) if num_kept > 1 else 0)
    except (OSError, RuntimeError, ValueError, asyncio.IncompleteReadError) as problem:
        _note(count, problem)
    finally:
        writer.close()


def _note(count: Count, problem: Exception) -> None:
    count.failed += 1
    if len(count.problems) < 3:
        count.problems.append(f"{type(problem).__name__}: {problem}")


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """(status, body) of a whole answer with a length, or one that the close of the connection ends."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    status = int(head[9:12])
    if "content-length" not in fields:
        return status, await reader.read()
    return status, await reader.readexactly(int(fields["content-length"]))
