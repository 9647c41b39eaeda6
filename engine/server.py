"""The engine's HTTP server: plain HTTP/1.1 on a unix socket, one endpoint module per API.

Owns the visible list of endpoints, the form of every error, and the socket file. What an endpoint does is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable
from types import ModuleType
from typing import cast

import orjson

from engine.errors import Kind, RequestError
from engine.http.connection import Connection
from engine.http.message import Request, Response
from engine.http.router import Router
from engine.http.stream import Stream
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

#: Each has ``routes(serving) -> list[Route]``. An API is added here.
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

_SHUT_S = 1.0  # for requests that have to end, and answers that have to leave
_LOOK_S = 0.005  # how often it is asked whether they have
_log = logging.getLogger(__name__)


class Server:
    """Serves ``serving`` on a unix socket from ``open`` to ``close``."""

    def __init__(self, serving: Serving, socket_path: str) -> None:
        self._path = socket_path
        self._serving = serving
        self._router = Router(route for endpoint in ENDPOINTS for route in endpoint.routes(serving))
        self._connections: set[Connection] = set()
        self._listener: asyncio.AbstractServer | None = None

    async def open(self) -> None:
        """Bind and listen. A socket that a dead engine left is replaced; a living one is not. Raises OSError."""
        _check_unserved(self._path)
        make = cast(
            Callable[[], asyncio.BaseProtocol], lambda: Connection(self._answer, self._connections, self._serving)
        )
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_unix_server(make, self._path, backlog=1024)

    async def stop_accepting(self) -> None:
        """Take no new connection; those that are open go on."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    async def close(self) -> None:
        """End every connection; what was answered before may still leave."""
        await self.stop_accepting()
        tasks = [task for each in tuple(self._connections) if (task := each.shut()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_SHUT_S)
        for _ in range(round(_SHUT_S / _LOOK_S)):
            if not self._connections:
                break
            await asyncio.sleep(_LOOK_S)
        for each in tuple(self._connections):
            each.abort()
        await asyncio.sleep(0)  # the transports have been told

    async def _answer(self, request: Request) -> Response | Stream:
        """While the engine drains, let the request's connection end with its answer."""
        if self._serving.draining:
            request.keep_alive = False
        answer = await self._respond(request)
        if self._serving.draining:
            request.keep_alive = False
        return answer

    async def _respond(self, request: Request) -> Response | Stream:
        """Whatever goes wrong before an answer has begun leaves as an error of the API that was asked; what is
        unexpected is logged."""
        try:
            found = self._router.find(request.method, request.path)
            if found.handler is not None:
                request.names = found.names
                return await found.handler(request)
            if found.allowed:
                allowed = ", ".join(found.allowed)
                return _refusal(request, RequestError(Kind.METHOD, f"use {allowed} here"), Allow=allowed)
            message = "there is nothing at this path; see /v1/models, and /v2/models/NAME for a model"
            return _refusal(request, RequestError(Kind.NOT_FOUND, message))
        except RequestError as error:
            return _refusal(request, error)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise  # the client has left
            return _failure(request)  # what the request waited for was cancelled, not the request
        except Exception:
            return _failure(request)


def _check_unserved(path: str) -> None:
    """Raises OSError when somebody listens on the socket: binding would take it from under him."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return
    raise OSError(errno.EADDRINUSE, "another engine is listening there")


def _failure(request: Request) -> Response:
    """Of an exception that is handled now."""
    _log.exception("%s %s failed", request.method, request.path)
    return _refusal(request, RequestError(Kind.FAILED, "the request failed inside the engine; its log says why"))


def _refusal(request: Request, error: RequestError, **headers: str) -> Response:
    speaks_oip = request.path == "/v2" or request.path.startswith("/v2/")
    body = orjson.dumps({"error": error.message} if speaks_oip else error.body())
    return Response(body, "application/json", {**error.headers(), **headers}, error.kind.status)
