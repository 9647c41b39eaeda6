"""A client that notes when each server-sent event arrives: over TLS as clients do, or on the engine's own socket.

Owns reading a chunked stream; knows of the API only that events are JSON and end with ``[DONE]``. It shares the cores
with what it measures, so it is to cost little: run it on uvloop.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Server:
    """Where to ask: a port of 127.0.0.1 with TLS under the given CA, or a unix socket without."""

    port: int = 0
    ca: str = ""
    socket_path: str = ""

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection."""
        if self.socket_path:
            return await asyncio.open_unix_connection(self.socket_path)
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=_trust(self.ca), server_hostname="localhost")


@cache
def _trust(ca: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)


@dataclass(slots=True)
class Stream:
    """One answer: when it was asked for and when each token came (seconds of perf_counter), and what it said last."""

    asked_at: float
    token_at: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, int] | None = None

    @property
    def first_token_s(self) -> float:
        """From asking to the first token."""
        return self.token_at[0] - self.asked_at

    @property
    def tokens_per_event(self) -> float:
        """An event may carry several tokens: those of a character that only the last completes, or of a draft."""
        if self.usage is None:
            raise RuntimeError("a stream ended without its usage")
        return self.usage["completion_tokens"] / len(self.token_at)

    @property
    def token_s(self) -> float:
        """Mean time between two tokens after the first."""
        return (self.token_at[-1] - self.token_at[0]) / max(1, len(self.token_at) - 1) / self.tokens_per_event


async def complete(server: Server, body: dict[str, Any], *, begun: asyncio.Event | None = None) -> Stream:
    """Streams one completion to its end; ``begun`` is set at its first token. Raises RuntimeError on a refusal."""
    reader, writer = await server.connect()
    try:
        stream = Stream(time.perf_counter())
        writer.write(
            render_request("/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
        )
        async for event in _events(reader):
            arrived_at = time.perf_counter()
            stream.usage = event.get("usage") or stream.usage
            for choice in event["choices"]:
                stream.finish_reason = choice["finish_reason"] or stream.finish_reason
                if choice["text"] or (stream.finish_reason and not stream.token_at):  # half a character shows nothing
                    stream.token_at.append(arrived_at)
                    if begun is not None:
                        begun.set()
        return stream
    finally:
        writer.close()


def render_request(path: str, body: dict[str, Any]) -> bytes:
    """A whole POST of JSON."""
    content = orjson.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


async def read_head(reader: asyncio.StreamReader) -> int | None:
    """Reads a head; the content length, or None for a chunked answer. Raises RuntimeError unless it says 200."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    length = int(fields["content-length"]) if "content-length" in fields else None
    if " 200 " not in head.partition("\r\n")[0]:
        raise RuntimeError(f"{head.partition(chr(13))[0]}: {(await reader.read(4096)).decode(errors='replace')}")
    return length


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    await read_head(reader)
    unread = b""
    while size := int(await reader.readline(), 16):
        unread += (await reader.readexactly(size + 2))[:-2]
        *events, unread = unread.split(b"\n\n")
        for event in events:
            data = event.removeprefix(b"data: ")
            if data.startswith(b"{"):
                yield orjson.loads(data)


async def device_figures(server: Server) -> tuple[float, float, float]:
    """(runs of the device, seconds inside them, seconds outside of them while work waited), since the engine began."""
    found = await _metrics(server)
    return found["steps_total"], found["device_run_seconds_total"], found["device_host_seconds_total"]


async def model_figures(server: Server) -> dict[str, float]:
    """The numbers of an engine's only model, by name."""
    return {name.partition("{")[0]: value for name, value in (await _metrics(server)).items() if "{model=" in name}


async def _metrics(server: Server) -> dict[str, float]:
    reader, writer = await server.connect()
    try:
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await read_head(reader)
        lines = (line.split() for line in (await reader.read()).decode().splitlines())
        return {words[0].removeprefix("headrace_engine_"): float(words[1]) for words in lines if len(words) == 2}
    finally:
        writer.close()
