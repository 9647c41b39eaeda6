"""WebSocket handshakes for tests, upstreams that agree to them, and frames as bytes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.wire.harness import Edge, RawClient, RawUpstream, UpstreamSide, app, edge, eventually, raw_upstream

ASK = (
    b"GET /chat?room=1 HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
AGREE = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
)
Talk = Callable[[UpstreamSide], Awaitable[None]]

PIECE = os.urandom(65536)


def frame(opcode: int, payload: bytes, *, masked: bool = False, final: bool = True) -> bytes:
    """A frame of RFC 6455 §5.2; a mask of zeros leaves the payload as it is."""
    size = len(payload)
    bit = 0x80 if masked else 0
    head = bytes([(0x80 if final else 0) | opcode])
    if size < 126:
        head += bytes([bit | size])
    elif size < 65536:
        head += bytes([bit | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([bit | 127]) + size.to_bytes(8, "big")
    return head + (b"\0\0\0\0" if masked else b"") + payload


def close_frame(code: int, reason: bytes = b"") -> bytes:
    return frame(8, code.to_bytes(2, "big") + reason)


def agreeing(talk: Talk, *, fields: bytes = b"", early: bytes = b"") -> Talk:
    """A script that agrees to a handshake, with ``early`` right behind the 101, and then talks."""

    async def script(side: UpstreamSide) -> None:
        if await side.head() is None:
            return
        await side.send(AGREE + fields + b"\r\n" + early)
        await talk(side)

    return script


async def echo(side: UpstreamSide) -> None:
    """Send back every byte, beginning with those that came behind the request."""
    data = side.buffered()
    while data or (data := await side.receive()):
        await side.send(data)
        data = b""
    side._upstream.left.set()


def chat(port: int, *, idle: str | None = None, **upstream: Any) -> dict[str, Any]:
    """A configuration whose only route tunnels WebSocket."""
    config = app(port, **upstream)
    config["routes"][0]["websocket"] = {"idle": idle} if idle else {}
    return config


async def shake(running: Edge, *, fields: bytes = b"", behind: bytes = b"", **connect: Any) -> tuple[RawClient, bytes]:
    """A client whose connection was switched, and the head of the 101."""
    client = await running.connect(**connect)
    await client.send(ASK + fields + b"\r\n" + behind)
    head = await client.until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n"), head
    return client, head


@asynccontextmanager
async def tunnelled(talk: Talk, **config: Any) -> AsyncIterator[tuple[RawUpstream, Edge, RawClient]]:
    """An upstream that agrees and talks, an edge, and a client that is joined to it."""
    async with raw_upstream(agreeing(talk)) as upstream, edge(chat(upstream.port, **config)) as running:
        client, _ = await shake(running)
        yield upstream, running, client


async def settled(running: Edge) -> None:
    """Wait until nobody is connected any more; nothing may be counted twice or left over."""
    await eventually(lambda: not running.worker._relays and not running.worker._open())
    assert running.worker._snapshot is not None
    for upstream in running.worker._snapshot.upstreams.values():
        assert all(state.in_flight == 0 for state in upstream.states)
        for server in upstream.servers:
            assert server.num_idle == 0
            # A connection is counted until the event loop has told of its end.
            await eventually(lambda server=server: server.statistics(0.0)["connections"] == 0)
