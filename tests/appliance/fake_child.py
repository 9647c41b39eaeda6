"""A child with the real channel, loop and process, and workers that do as the configuration's names tell them.

A proxy refuses a configuration with an upstream named ``refused``, crashes on one named ``crash``, and on a question
about the breaker of one named ``mute``. An engine obeys the words in its model folder's ``model.yaml``: ``corrupt`` can
never load, ``sick`` loads and then is in trouble. An order about a model named ``deadly`` kills it, and one about
``faulty`` fails.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from appliance.child import main
from appliance.engine_child import EngineChild
from appliance.link import Link
from appliance.proxy_child import ProxyChild
from engine.errors import EngineError
from engine.settings import EngineSettings
from proxy.config import Materials
from proxy.config_routes import ProxyConfig


class BuildError(Exception):
    problems = ("upstream refused: as its name says",)


class FakeProxy:
    """Answers every connection with one line that says who it is: ``pid revision engine-state``."""

    def __init__(self) -> None:
        self.engine = "unknown"
        self.servers: dict[str, asyncio.Server] = {}
        self.names = ""
        self.states: dict[str, str] = {}
        self.open: set[asyncio.StreamWriter] = set()

    async def build(self, config: ProxyConfig, materials: Materials, sockets: Mapping[str, socket.socket]) -> Any:
        if "refused" in config.upstreams:
            raise BuildError
        if "crash" in config.upstreams:
            os.kill(os.getpid(), signal.SIGSEGV)
        return config, dict(sockets)

    async def commit(self, snapshot: Any) -> None:
        config, sockets = snapshot
        self.names = ",".join(config.upstreams)
        for address in self.servers.keys() - sockets.keys():
            self.servers.pop(address).close()
        for address in sockets.keys() - self.servers.keys():
            self.servers[address] = await asyncio.start_server(self._serve, sock=sockets[address].dup())

    def discard(self, snapshot: Any) -> None:
        pass

    def engine_state(self, up: bool, reason: str = "") -> None:
        self.engine = "up" if up else reason

    def breakers(self) -> dict[str, dict[str, Any]]:
        if "mute" in self.names:
            os.kill(os.getpid(), signal.SIGKILL)
        return {name: {"state": self.states.get(name, "closed")} for name in self.names.split(",")}

    def order_breakers(self, order: str, names: list[str], for_s: float | None, number: float) -> None:
        self.states.update(dict.fromkeys(names, f"{order} {for_s}"))

    def variants(self) -> dict[str, list[dict[str, Any]]]:
        if "mute" in self.names:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"r": [{"variant": self.states.get("variant", "control")}]}

    def order_variants(self, order: str, route: str, variant: str | None, share: float, number: float) -> str | None:
        if share > 0.2:
            return "too much"
        self.states["variant"] = f"{order} {route} {variant} {share}"
        return None

    async def drain(self, deadline_s: float) -> bool:
        for server in self.servers.values():
            server.close()
        until = time.monotonic() + deadline_s
        while self.open and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return not self.open

    def statistics(self) -> dict[str, Any]:
        return {"engine": self.engine, "open": len(self.open)}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A line per line, until the client leaves."""
        self.open.add(writer)
        while await reader.readline():
            writer.write(f"{os.getpid()} {self.names}\n".encode())
        writer.close()
        self.open.discard(writer)


class FakeEngine:
    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.words = "".join((Path(model.path) / "model.yaml").read_text() for model in settings.models)
        self.server: asyncio.Server | None = None

    async def start(self, progress: Callable[[str], None]) -> None:
        progress("loading")
        if "corrupt" in self.words:
            raise EngineError("weights.bin is corrupt; import the model again", permanent=True)
        self.server = await asyncio.start_unix_server(self._serve, self.settings.socket_path)

    def healthy(self, now: float) -> str | None:
        return "the runner hangs" if "sick" in self.words else None

    async def drain(self, deadline_s: float) -> bool:
        assert self.server is not None
        self.server.close()
        return True

    async def order(self, order: str, name: str, path: str) -> dict[str, Any]:
        if name == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "faulty":
            raise ValueError(path)
        return {"ok": True, "problems": [], "models": [{"name": name, "state": order, "reason": path}]}

    def statistics(self) -> dict[str, Any]:
        return {"telemetry_off": os.environ.get("ORT_DISABLE_TELEMETRY"), "session": os.getsid(0) == os.getpid()}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        page = b"fake_engine_tokens_total 7\n"
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page))
        writer.close()


async def play_proxy(link: Link, arguments: argparse.Namespace) -> int:
    return await ProxyChild(link, FakeProxy(), os.open(os.devnull, os.O_WRONLY), BuildError).run()


async def play_engine(link: Link, arguments: argparse.Namespace) -> int:
    return await EngineChild(link, FakeEngine).run()


if __name__ == "__main__":
    main({"proxy": play_proxy, "engine": play_engine})
