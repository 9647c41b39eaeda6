"""The admin interface: orders on a unix socket for its owner alone, readings on a loopback port for everybody local.

The port has GET /metrics, /status, /events and /healthz; the socket has them too, and POST /reload, /breakers, /events,
/variants, /models, /status and /stop. The port answers to addresses and to localhost alone: a web page whose name was
made to point at 127.0.0.1 sends its own name.
An order that names a configuration file is carried out by the headrace that serves this file alone.
Knows the box only by the few questions and orders of ``Box``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes, urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from appliance import breakers, metrics, model_orders, variants
from appliance.admin_client import CONFIGURATION_HEADER, SOCKET_NAME
from appliance.event_ring import MAX_FOLLOWERS, EventRing

_MAX_BODY_BYTES = 64 << 10
_SHUTDOWN_S = 0.5


class Box(Protocol):
    """What can be asked of the running appliance, and ordered."""

    def status(self) -> dict[str, Any]: ...
    def faults(self) -> tuple[str, ...]: ...
    async def metrics(self) -> bytes: ...
    def reload(self) -> Awaitable[tuple[str, ...]]: ...
    async def breakers(self, order: str, upstream: str | None, for_s: float | None) -> dict[str, Any]: ...
    async def variants(self, order: str, route: str | None, variant: str | None, share: float) -> dict[str, Any]: ...
    async def models(self, order: str, name: str, path: str) -> dict[str, Any]: ...
    def stop(self) -> None: ...

    @property
    def event_ring(self) -> EventRing: ...
    @property
    def configuration_path(self) -> Path: ...


class Admin:
    """Both servers, on the running loop."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._runners: dict[str, web.AppRunner] = {}

    async def open_socket(self, runtime_dir: Path) -> None:
        """Take orders at ``admin.sock``, readable by the owner alone, in place of the one before. Raises OSError."""
        orders = [
            web.post("/reload", self._reload),
            web.post("/breakers", self._breakers),
            web.post("/events", self._kept_events),
            web.post("/variants", self._variants),
            web.post("/models", self._models),
            web.post("/status", self._status),
            web.post("/stop", self._stop),
        ]
        await self._open("socket", _bind_for_owner(runtime_dir / SOCKET_NAME), orders, self._refuse_misdirected)

    async def open_port(self, sock: socket.socket | None) -> None:
        """Show readings on this bound socket, in place of the one before; None: on the unix socket alone."""
        await self._open("port", sock, [], _refuse_names)

    async def close(self) -> None:
        """End both."""
        for runner in self._runners.values():
            await runner.cleanup()
        self._runners.clear()

    async def _open(
        self, name: str, sock: socket.socket | None, orders: list[web.RouteDef], *middlewares: Middleware
    ) -> None:
        before = self._runners.pop(name, None)
        if sock is not None:
            application = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=middlewares)
            readings = [
                web.get("/metrics", self._metrics),
                web.get("/status", self._status),
                web.get("/healthz", self._healthz),
                web.get("/events", self._events),
            ]
            application.add_routes(readings + orders)
            runner = web.AppRunner(application, access_log=None, shutdown_timeout=_SHUTDOWN_S, handle_signals=False)
            self._runners[name] = runner
            await runner.setup()
            await web.SockSite(runner, sock, backlog=64).start()
        if before is not None:
            await before.cleanup()

    @web.middleware
    async def _refuse_misdirected(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        meant = request.headers.get(CONFIGURATION_HEADER)
        served = self._box.configuration_path
        if meant is not None and not _is_same(os.fsdecode(unquote_to_bytes(meant)), served):
            return web.json_response({"configuration": str(served)}, status=421)
        return await handler(request)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=await self._box.metrics(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(self._box.status())

    async def _healthz(self, request: web.Request) -> web.Response:
        faults = self._box.faults()
        if faults:
            return web.Response(status=503, text="".join(f"{fault}\n" for fault in faults))
        return web.Response(text="ok\n")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """What has happened: those kept as JSON or, for who accepts them, server-sent events as they come."""
        ring = self._box.event_ring
        last = request.headers.get("Last-Event-ID") or request.query.get("after", "0")
        if not (last.isascii() and last.isdigit() and len(last) < 16):
            raise web.HTTPBadRequest(text="after (or Last-Event-ID) is the number of an event\n")
        if "text/event-stream" not in request.headers.get("Accept", ""):
            return web.json_response({"events": ring.after(int(last))})
        if ring.num_followers >= MAX_FOLLOWERS:
            message = f"{MAX_FOLLOWERS} follow the events already; try again later\n"
            raise web.HTTPServiceUnavailable(text=message, headers={"Retry-After": "10"})
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await stream.prepare(request)
        async with aclosing(ring.follow(int(last))) as events:
            async for event in events:
                await stream.write(event)
        return stream

    async def _kept_events(self, request: web.Request) -> web.Response:
        after = (await request.json()).get("after", 0) if request.can_read_body else 0
        if not isinstance(after, int):
            raise web.HTTPBadRequest(text="after is the number of an event\n")
        return web.json_response({"events": self._box.event_ring.after(after)})

    async def _reload(self, request: web.Request) -> web.Response:
        waits = (await request.json()).get("wait", True) if request.can_read_body else True
        reloading = self._box.reload()
        problems = await reloading if waits else ()
        answer = {"ok": not problems, "problems": list(problems), "revision": self._box.status()["revision"]}
        return web.json_response(answer)

    async def _breakers(self, request: web.Request) -> web.Response:
        asked = await request.json() if request.can_read_body else {}
        order, for_s = asked.get("order", "list"), asked.get("for_s")
        _check(order, breakers.ORDERS)
        if for_s is not None and not (isinstance(for_s, int | float) and for_s > 0):
            raise web.HTTPBadRequest(text=f"for_s: {for_s!r} is not a number of seconds above 0\n")
        return web.json_response(await self._box.breakers(order, asked.get("upstream"), for_s))

    async def _variants(self, request: web.Request) -> web.Response:
        asked = await request.json() if request.can_read_body else {}
        order, route, variant = asked.get("order", "list"), asked.get("route"), asked.get("variant")
        share = asked.get("share", 0.0)
        _check(order, variants.ORDERS)
        if order != "list" and not isinstance(route, str):
            raise web.HTTPBadRequest(text=f"{order} is an order to one route: name it\n")
        if order == "set" and not (isinstance(variant, str) and isinstance(share, int | float) and 0 <= share <= 1):
            raise web.HTTPBadRequest(text="set takes a variant and its share, a number from 0 to 1\n")
        return web.json_response(await self._box.variants(order, route, variant, float(share)))

    async def _models(self, request: web.Request) -> web.Response:
        asked = await request.json() if request.can_read_body else {}
        order, name, path = asked.get("order", "list"), asked.get("name", ""), asked.get("path", "")
        _check(order, model_orders.ORDERS)
        if not isinstance(name, str) or not isinstance(path, str):
            raise web.HTTPBadRequest(text="name and path are strings\n")
        return web.json_response(await self._box.models(order, name, path))

    async def _stop(self, request: web.Request) -> web.Response:
        self._box.stop()
        return web.json_response({"ok": True})


def _check(order: Any, known: Sequence[str]) -> None:
    if order not in known:
        raise web.HTTPBadRequest(text=f"{order!r} is no order; known: {', '.join(known)}\n")


def _is_same(meant: str, served: Path) -> bool:
    return os.path.realpath(meant) == os.path.realpath(served)


@web.middleware
async def _refuse_names(request: web.Request, handler: Handler) -> web.StreamResponse:
    host = urlsplit(f"//{request.host}").hostname or ""
    try:
        ip_address(host)
    except ValueError:
        if host != "localhost":
            raise web.HTTPForbidden(text=f"{host} is not this machine's: ask localhost or 127.0.0.1\n") from None
    return await handler(request)


def _bind_for_owner(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        sock.bind(str(path))
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock
