"""An upstream that does everything an upstream does, well and badly: the other side of bench/mixed_load.py.

    python mixed_origin.py PORT

/N: N bytes. /upload: how many bytes of the body arrived. /events: a stream of events, twenty a second, until the client
leaves. /slow: an answer after half a second. /503: that. /reset: no answer. /short: less of a body than promised.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

EVENT = b"14\r\ndata: xxxxxxxxxxxx\n\n\r\n"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await answer(reader, writer):
            pass
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answers one request; False: the connection is not used again."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    path = head.split(" ", 2)[1]
    num_bytes = await _body(reader, head)
    if path == "/upload":
        text = str(num_bytes).encode()
    elif path == "/events":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not reader.at_eof() and not writer.is_closing():
            writer.write(EVENT)
            await writer.drain()
            await asyncio.sleep(0.05)
        return False
    elif path == "/slow":
        await asyncio.sleep(0.5)
        text = b"late"
    elif path == "/503":
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy")
        return True
    elif path == "/reset":
        return False
    elif path == "/short":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort")
        await writer.drain()
        return False
    else:
        text = b"x" * int(path[1:] or "128")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
    await writer.drain()
    return True


async def _body(reader: asyncio.StreamReader, head: str) -> int:
    """Reads a body away; its length."""
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    num_bytes = 0
    if "transfer-encoding" in fields:
        while size := int(await reader.readline(), 16):
            num_bytes += len(await reader.readexactly(size + 2)) - 2
        await reader.readline()
        return num_bytes
    left = int(fields.get("content-length", "0"))
    while left:
        piece = await reader.read(min(left, 65536))
        if not piece:
            raise asyncio.IncompleteReadError(b"", left)
        num_bytes, left = num_bytes + len(piece), left - len(piece)
    return num_bytes


async def main(port: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
