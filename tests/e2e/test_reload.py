"""A reload under open streams, and a reload that is refused."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from tests.e2e.appliance import TIMEOUT_S, Appliance, free_port, gone
from tests.e2e.conftest import Start

NUM_STREAMS = 100
EDGE = """
listeners:
  - address: 127.0.0.1:{{port}}
    tls: {{{{certificates: [{{{{cert: {{tls}}/localhost.pem, key: {{tls}}/localhost.key}}}}]}}}}
upstreams:
  app: {{{{servers: ["http://127.0.0.1:{upstream}"]}}}}
routes:
  - {{{{match: {{{{path: /*}}}}, to: app{policies}}}}}
"""


class StreamingUpstream:
    """Sends each request an event, and the last one when it is released."""

    def __init__(self) -> None:
        self.port = free_port()
        self._released = asyncio.Event()

    def release(self) -> None:
        self._released.set()

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._answer, "127.0.0.1", self.port, backlog=256)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"d\r\ndata: first\n\n\r\n")
        await writer.drain()
        await self._released.wait()
        writer.write(b"c\r\ndata: last\n\n\r\n0\r\n\r\n")
        await writer.drain()
        writer.close()


async def open_stream(appliance: Appliance) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream through the edge whose first event has come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", appliance.port, ssl=appliance.trust)
    writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"data: first\n\n\r\n")
    return reader, writer


async def run(appliance: Appliance, *arguments: str) -> str:
    done = await asyncio.to_thread(appliance.run, *arguments)
    return done.stdout


async def test_a_reload_cuts_none_of_a_hundred_open_streams(start: Start) -> None:
    upstream = StreamingUpstream()
    async with asyncio.timeout(TIMEOUT_S), await upstream.serve():
        appliance = await asyncio.to_thread(start, EDGE.format(upstream=upstream.port, policies=""))
        proxies = appliance.children("proxy")
        streams = [await open_stream(appliance) for _ in range(NUM_STREAMS)]

        appliance.write(
            EDGE.format(upstream=upstream.port, policies=", policies: {{access: {{deny: [192.0.2.0/24]}}}}")
        )
        signal_reload(appliance)
        await run(appliance, "reload", "--wait", "-c", str(appliance.file))  # queues behind the signal's

        upstream.release()
        for reader, writer in streams:
            rest = await reader.readuntil(b"0\r\n\r\n")
            assert rest == b"c\r\ndata: last\n\n\r\n0\r\n\r\n"
            await gone(writer)
        assert appliance.children("proxy") == proxies


def signal_reload(appliance: Appliance) -> None:
    import os

    os.kill(appliance.pid, signal.SIGHUP)


def test_a_broken_file_changes_nothing_and_the_error_names_the_line(start: Start, tmp_path: Path) -> None:
    configuration = EDGE.format(upstream=free_port(), policies="")
    appliance = start(configuration)
    before = appliance.get("/").status
    broken = configuration.replace("servers:", "sevrers:")
    appliance.write(broken)
    line = next(n for n, text in enumerate(appliance.file.read_text().splitlines(), 1) if "sevrers" in text)

    refused = appliance.run("reload", "--wait", "-c", str(appliance.file), check=False)

    assert refused.returncode != 0
    assert f"headrace.yaml:{line}:" in refused.stderr
    assert "servers" in refused.stderr.split("sevrers", 1)[1]  # the nearest known key
    assert appliance.get("/").status == before
