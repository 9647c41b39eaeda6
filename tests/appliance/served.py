"""``python -m appliance serve`` as a process of its own with real proxies, and an upstream that streams for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from appliance.admin_client import call
from tests.appliance.running import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 60.0
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"data: tick\n\n"


@asynccontextmanager
async def streaming_upstream() -> AsyncIterator[int]:
    """The port of an upstream that answers every request with an event every 20 ms, until its client leaves."""
    streams: set[asyncio.Task[None]] = set()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        streams.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(STREAM_HEAD)
            while True:
                writer.write(b"%x\r\n%s\r\n" % (len(EVENT), EVENT))
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.close()
        streams.discard(task)

    server = await asyncio.start_server(stream, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in set(streams):
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


class Stream:
    """A request whose answer goes on and on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def event(self) -> None:
        """Wait for an event that was sent from now on. Raises IncompleteReadError if the stream has ended."""
        await asyncio.wait_for(self.reader.readuntil(EVENT), TIMEOUT_S)

    async def rest(self) -> bytes:
        """What comes until the end; a reset is an end, too."""
        read = b""
        with suppress(ConnectionError):
            while piece := await asyncio.wait_for(self.reader.read(65536), TIMEOUT_S):
                read += piece
        return read

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


class Served:
    """The process, its file, and what one can see of it from outside."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "headrace.yaml"
        self.runtime_dir = directory / "run"
        self.log_path = directory / "log"
        self.port, self.admin_port = free_port(), free_port()
        self.process: Process | None = None
        self._streams: list[Stream] = []

    def write(
        self, upstream_port: int, *, workers: int = 1, drain: str = "20s", path: str = "/*", access_log: str = "off"
    ) -> None:
        """Put a configuration into the file."""
        self.file.write_text(f"""
runtime_dir: {self.runtime_dir}
admin: {{address: 127.0.0.1:{self.admin_port}}}
log: {{access: "{access_log}"}}
workers: {workers}
drain: {drain}
listeners:
  - address: 127.0.0.1:{self.port}
upstreams:
  app: {{servers: [http://127.0.0.1:{upstream_port}]}}
routes:
  - {{match: {{path: {path}}}, to: app}}
""")

    async def spawn(self, *wrapper: str, **options: Any) -> Process:
        """Start it, by a wrapping command if one is given, and do not wait."""
        with self.log_path.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *wrapper, sys.executable, "-m", "appliance", "serve", "-c", str(self.file),
                cwd=ROOT, stdout=log, stderr=log, **options,
            )  # fmt: skip
        return self.process

    async def start(self, *wrapper: str, **options: Any) -> None:
        """Start it and wait until it is ready."""
        process = await self.spawn(*wrapper, **options)
        await self.until(lambda: process.returncode is not None or "ready on" in self.log, "a ready log")
        assert process.returncode is None, self.log

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until the condition is true."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what}\n{self.log}") from None

    async def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """What the admin socket answers."""
        return await asyncio.to_thread(call, self.runtime_dir, verb, **arguments)

    async def pids(self) -> dict[str, int]:
        """The children's process ids by name."""
        return {child["name"]: child["pid"] for child in (await self.ask("status"))["children"]}

    async def connect(self) -> Stream:
        """A connection to the edge, closed at the end."""
        stream = Stream(*await asyncio.open_connection("127.0.0.1", self.port))
        self._streams.append(stream)
        return stream

    async def stream(self) -> Stream:
        """A stream that has begun."""
        stream = await self.connect()
        stream.writer.write(b"GET /events HTTP/1.1\r\nHost: app.example\r\n\r\n")
        await stream.event()
        return stream

    async def status_of(self, path: str) -> int:
        """The status of a GET on a connection of its own."""
        stream = await self.connect()
        stream.writer.write(f"GET {path} HTTP/1.1\r\nHost: app.example\r\n\r\n".encode())
        line = await asyncio.wait_for(stream.reader.readline(), TIMEOUT_S)
        await stream.close()
        return int(line.split()[1])

    async def metrics(self) -> dict[str, float]:
        """The metrics by name, summed over their labels."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.admin_port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        page = (await reader.read()).decode().partition("\r\n\r\n")[2]
        writer.close()
        totals: dict[str, float] = {}
        for line in page.splitlines():
            if not line.startswith("#"):
                name, value = line.split("{")[0].split(" ")[0], float(line.rpartition(" ")[2])
                totals[name] = totals.get(name, 0.0) + value
        return totals

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def wait(self) -> int:
        """The exit code."""
        assert self.process is not None
        async with asyncio.timeout(TIMEOUT_S):
            return await self.process.wait()

    async def close(self) -> None:
        """End what is still there."""
        for stream in self._streams:
            await stream.close()
        if self.process is not None and self.process.returncode is None:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGTERM)
            await self.wait()


def is_running(pid: int) -> bool:
    """Whether the process is there, and not only its entry."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
