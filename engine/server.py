"""The engine's HTTP server: plain HTTP/1.1 on a unix socket, one endpoint module per API.

Owns the visible list of endpoints, the form of every error, and the socket file. What an endpoint does is its own.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from types import ModuleType

import orjson
from aiohttp import web

from engine.errors import Kind, RequestError
from engine.serving import Serving
from engine.wire import (
    classify,
    health,
    metrics,
    oip,
    oip_repository,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_models,
    tokens,
)

#: Each has ``routes(serving) -> list[web.RouteDef]``. An API is added here.
ENDPOINTS: tuple[ModuleType, ...] = (
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_models,
    classify,
    oip,
    oip_repository,
    tokens,
    health,
    metrics,
)

_KEEP_ALIVE_S = 3600.0  # the proxy's pool decides which connections live; it must never lose a race against us
_MAX_LINE_BYTES = 64 << 10  # above every limit of the proxy: it judges heads, not the engine
#: Half of what a body may be ahead of its reader. With less, a megabyte is stopped many times: a quarter more work.
_READ_BYTES = 512 << 10
_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves ``serving`` on a unix socket from ``open`` to ``close``."""

    def __init__(self, serving: Serving, socket_path: str) -> None:
        self._path = socket_path
        self._serving = serving
        app = web.Application(middlewares=[self._count, _say_errors])
        app.on_response_prepare.append(_leave_unnamed)
        for endpoint in ENDPOINTS:
            app.add_routes(endpoint.routes(serving))
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,  # a client that leaves ends its handler, and the handler its job
            keepalive_timeout=_KEEP_ALIVE_S,
            auto_decompress=False,  # a compressed body is refused, not inflated
            max_line_size=_MAX_LINE_BYTES,
            max_field_size=_MAX_LINE_BYTES,
            max_headers=1000,
            read_bufsize=_READ_BYTES,
            shutdown_timeout=1.0,
        )
        self._site: web.UnixSite | None = None

    async def open(self) -> None:
        """Bind and listen. A socket that a dead engine left is replaced; a living one is not. Raises OSError."""
        _check_unserved(self._path)
        await self._runner.setup()
        self._site = web.UnixSite(self._runner, self._path, backlog=1024)
        await self._site.start()

    async def stop_accepting(self) -> None:
        """Take no new connection; those that are open go on."""
        if self._site is not None:
            await self._site.stop()
            self._site = None
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    async def close(self) -> None:
        """End every connection."""
        await self.stop_accepting()
        await self._runner.cleanup()

    @web.middleware
    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keep the drain waiting for this request; while there is one, let its connection end with its answer."""
        self._serving.enter()
        try:
            response = await handler(request)
            if self._serving.draining:
                response.force_close()
            return response
        finally:
            self._serving.leave()


def _check_unserved(path: str) -> None:
    """Raises OSError when somebody listens on the socket: binding would take it from under him."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return
    raise OSError(errno.EADDRINUSE, "another engine is listening there")


async def _leave_unnamed(request: web.Request, response: web.StreamResponse) -> None:
    """aiohttp names itself and its version in every answer: of no use to a client, and of some to an attacker."""
    response.headers.popall("Server", None)


@web.middleware
async def _say_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Whatever goes wrong before an answer has begun leaves as an error of the API that was asked; what is unexpected
    is logged."""
    try:
        return await handler(request)
    except RequestError as error:
        return _refusal(request, error)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return _refusal(request, RequestError(Kind.METHOD, f"use {allowed} here"), Allow=allowed)
    except web.HTTPNotFound:
        message = "there is nothing at this path; see /v1/models, and /v2/models/NAME for a model"
        return _refusal(request, RequestError(Kind.NOT_FOUND, message))
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        message = "the request failed inside the engine; its log says why"
        return _refusal(request, RequestError(Kind.FAILED, message))


def _refusal(request: web.Request, error: RequestError, **headers: str) -> web.Response:
    speaks_oip = request.path == "/v2" or request.path.startswith("/v2/")
    return web.Response(
        status=error.kind.status,
        body=orjson.dumps({"error": error.message} if speaks_oip else error.body()),
        content_type="application/json",
        headers={**error.headers(), **headers},
    )
