"""The admin interface: orders on a unix socket for its owner alone, readings on a loopback port for everybody local.

The port has GET /metrics, /status and /healthz; the socket has them too, and POST /reload, /status and /stop. Knows the
box only by the few questions and orders of ``Box``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from appliance import metrics
from appliance.admin_client import SOCKET_NAME

_MAX_BODY_BYTES = 64 << 10
_SHUTDOWN_S = 0.5


class Box(Protocol):
    """What can be asked of the running appliance, and ordered."""

    def status(self) -> dict[str, Any]: ...
    def faults(self) -> tuple[str, ...]: ...
    async def metrics(self) -> bytes: ...
    def reload(self) -> Awaitable[tuple[str, ...]]: ...
    def stop(self) -> None: ...


class Admin:
    """Both servers, on the running loop."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._runners: dict[str, web.AppRunner] = {}

    async def open_socket(self, runtime_dir: Path) -> None:
        """Take orders at ``admin.sock``, readable by the owner alone. Raises OSError."""
        path = runtime_dir / SOCKET_NAME
        path.unlink(missing_ok=True)
        orders = [web.post("/reload", self._reload), web.post("/status", self._status), web.post("/stop", self._stop)]
        runner = await self._start("socket", orders)
        before = os.umask(0o177)
        try:
            await web.UnixSite(runner, str(path)).start()
        finally:
            os.umask(before)

    async def open_port(self, sock: socket.socket | None) -> None:
        """Show readings on this bound socket, in place of the one before; None: on the unix socket alone."""
        before = self._runners.pop("port", None)
        if sock is not None:
            await web.SockSite(await self._start("port", []), sock, backlog=64).start()
        if before is not None:
            await before.cleanup()

    async def close(self) -> None:
        """End both."""
        for runner in self._runners.values():
            await runner.cleanup()
        self._runners.clear()

    async def _start(self, name: str, orders: list[web.RouteDef]) -> web.AppRunner:
        application = web.Application(client_max_size=_MAX_BODY_BYTES)
        readings = [
            web.get("/metrics", self._metrics),
            web.get("/status", self._status),
            web.get("/healthz", self._healthz),
        ]
        application.add_routes(readings + orders)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=_SHUTDOWN_S, handle_signals=False)
        await runner.setup()
        self._runners[name] = runner
        return runner

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=await self._box.metrics(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(self._box.status())

    async def _healthz(self, request: web.Request) -> web.Response:
        faults = self._box.faults()
        if faults:
            return web.Response(status=503, text="".join(f"{fault}\n" for fault in faults))
        return web.Response(text="ok\n")

    async def _reload(self, request: web.Request) -> web.Response:
        waits = (await request.json()).get("wait", True) if request.can_read_body else True
        reloading = self._box.reload()
        problems = await reloading if waits else ()
        answer = {"ok": not problems, "problems": list(problems), "revision": self._box.status()["revision"]}
        return web.json_response(answer)

    async def _stop(self, request: web.Request) -> web.Response:
        self._box.stop()
        return web.json_response({"ok": True})
