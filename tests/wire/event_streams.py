"""What tests of event streams share."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.wire.harness import Script, UpstreamSide, app

GET = b"GET / HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip, br\r\n\r\n"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def pinged(port: int, **upstream: Any) -> dict[str, Any]:
    """A configuration that puts a comment into a stream after one quiet sweep."""
    config = app(port, **upstream)
    config["routes"][0]["ping"] = "1ms"
    return config


def told(queue: asyncio.Queue[bytes], head: bytes = HEAD) -> Script:
    """A script that begins an answer and sends in chunks what the queue tells it; b"" ends the answer."""

    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            await side.send(head)
            while piece := await queue.get():
                await side.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await side.send(b"0\r\n\r\n")

    return script
