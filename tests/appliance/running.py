"""An appliance on the test's own loop, its children from tests/appliance/fake_child.py, asked by its admin socket."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from appliance import process
from appliance.admin_client import call
from appliance.config import load
from appliance.post import Limits

FAKE_CHILD = (sys.executable, "-P", str(Path(__file__).parent / "fake_child.py"))
LIMITS = Limits(silence_s=3.0, abort_s=0.5)
TIMEOUT_S = 60.0
_FIRST_PORT = 10_240


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on now, and none of those that the kernel gives to whoever asks for any:
    until somebody listens on it, one of a thousand connections could have got it."""
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = _FIRST_PORT + secrets.randbelow(max(first_given - _FIRST_PORT, _FIRST_PORT))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def of_process(pid: int, file: str) -> bytes:
    """What /proc says of a process."""
    return Path(f"/proc/{pid}/{file}").read_bytes()


class Client:
    """A connection to a fake worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def who(self) -> list[str]:
        """Process id and upstreams of the worker at the other end."""
        self._writer.write(b"who\n")
        return (await asyncio.wait_for(self.reader.readline(), TIMEOUT_S)).decode().split()


class Running:
    """The appliance's files, and what one can see of it from outside."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "headrace.yaml"
        self.runtime_dir = directory / "run"
        self.port, self.admin_port = free_port(), free_port()
        self.exit_code: asyncio.Future[int] | None = None

    def write(self, *, upstream: str = "app", models: tuple[str, ...] = (), more: str = "", port: int = 0) -> None:
        """Put a configuration into the file. models: names of folders in ``directory``."""
        lines = [
            f"runtime_dir: {self.runtime_dir}",
            f"admin: {{address: 127.0.0.1:{self.admin_port}}}",
            f"listeners: [{{address: 127.0.0.1:{port or self.port}}}]",
            f"upstreams: {{{upstream}: {{servers: [http://127.0.0.1:1]}}}}",
            f"routes: [{{match: {{path: /*}}, to: {upstream}}}]",
            "models:" if models else "",
            *(f"  {name}: {{path: {self.directory / name}}}" for name in models),
            more,
        ]
        self.file.write_text("\n".join(lines))

    def write_model(self, name: str, words: str = "fine") -> None:
        """A model folder whose engine does as the words say."""
        (self.directory / name).mkdir(exist_ok=True)
        (self.directory / name / "model.yaml").write_text(words)

    async def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """What the admin socket answers."""
        return await asyncio.to_thread(call, self.runtime_dir, verb, **arguments)

    async def children(self) -> dict[str, dict[str, Any]]:
        """The children of the status page by name."""
        return {child["name"]: child for child in (await self.ask("status"))["children"]}

    async def until(self, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The first status page that meets the condition."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition(status := await self.ask("status")):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return status

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Client]:
        """A connection to the edge."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()

    async def who(self) -> list[str]:
        """What a fake worker says of itself on a new connection: process id, upstreams."""
        async with self.connected() as client:
            return await client.who()

    async def get(self, path: str) -> tuple[int, str]:
        """(status, body) of the admin port."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.admin_port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body

    async def end(self) -> int:
        """Stop it by its admin socket, and wait for its exit code."""
        assert self.exit_code is not None
        await self.ask("stop")
        return await self.exit_code


@asynccontextmanager
async def run(running: Running) -> AsyncIterator[Running]:
    """Serve what ``running.write`` wrote, from ready until the end of the block."""
    ready = asyncio.Event()
    configuration = load(running.file)
    running.exit_code = asyncio.ensure_future(
        process.run(running.file, configuration, on_ready=ready.set, command=FAKE_CHILD, limits=LIMITS)
    )
    waiting = asyncio.ensure_future(ready.wait())
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.wait({waiting, running.exit_code}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
    try:
        yield running
    finally:
        if not running.exit_code.done():
            async with asyncio.timeout(TIMEOUT_S):
                await running.end()
