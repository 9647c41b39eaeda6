"""``/v2``: the Open Inference Protocol (KServe's version 2) over HTTP, with the binary tensor data extension.

Owns the paths. A model has one version; a path that names another one is not found. Errors have the protocol's form,
``{"error": "text"}``, which the server gives to everything under this path.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

import orjson

from engine.batching.lane import BatchLane
from engine.batching.tally import Tally
from engine.entry import Entry, State
from engine.errors import Kind, RequestError
from engine.http.message import Request, Response
from engine.http.router import Route, get, post
from engine.http.stream import Stream
from engine.serving import Serving
from engine.wire import oip_infer, oip_statistics
from engine.wire.health import problem_of
from engine.wire.oip_metadata import describe_model, describe_server, facts_of
from engine.wire.openai_answer import MEDIA_TYPE

_RETRY_S = 1.0
_MODEL = "/v2/models/{model}"
_PATHS = (_MODEL, _MODEL + "/versions/{version}")

Handler = Callable[[Request], Awaitable[Response | Stream]]


def routes(serving: Serving) -> list[Route]:
    """This module's part of the server."""

    async def server(request: Request) -> Response:
        return _json(describe_server(version("headrace")))

    async def live(request: Request) -> Response:
        return Response()

    async def ready(request: Request) -> Response:
        problem = await problem_of(serving)
        if problem is None and (names := serving.repository.why_not()):
            problem = f"these models cannot serve now: {', '.join(names)}"
        return _ready(problem)

    async def model_ready(request: Request) -> Response:
        entry = _entry(serving, request)
        problem = await problem_of(serving)
        if problem is None and not _is_ready(entry):
            problem = f"the model {entry.name!r} is {entry.state}: {entry.reason}"
        return _ready(problem)

    async def model(request: Request) -> Response:
        entry = _entry(serving, request)
        source = entry.source
        return _json(describe_model(entry.name, source.version, source.kind, facts_of(source.manifest)))

    async def statistics(request: Request) -> Response:
        asked = request.names.get("model")
        entries = serving.fleet.entries.values() if asked is None else [_entry(serving, request)]
        return _json({"model_stats": [_statistics(entry) for entry in entries]})

    async def infer(request: Request) -> Response | Stream:
        return await oip_infer.infer(request, serving, _entry(serving, request))

    return [
        *(post(path + "/infer", infer) for path in _PATHS),  # first: they are looked through in this order
        *(get(path + "/ready", model_ready) for path in _PATHS),
        get("/v2/models/stats", statistics),
        *(get(path + "/stats", statistics) for path in _PATHS),
        *(get(path, model) for path in _PATHS),
        get("/v2", server),
        get("/v2/health/live", live),
        get("/v2/health/ready", ready),
    ]


def _entry(serving: Serving, request: Request) -> Entry:
    """The model that the path names. Raises RequestError (404)."""
    entry = serving.get(request.names["model"])
    asked = request.names.get("version")
    if asked is not None and asked != entry.source.version:
        message = f"the model {entry.name!r} has no such version here; it has: {entry.source.version}"
        raise RequestError(Kind.MODEL_NOT_FOUND, message)
    return entry


def _statistics(entry: Entry) -> dict[str, Any]:
    """Since the model was loaded. What does not run in batches, or is not in memory, has counted nothing."""
    lane = None if entry.model is None else entry.model.lane
    if not isinstance(lane, BatchLane):
        return oip_statistics.describe(entry.name, entry.source.version, Tally(), 0)
    ran = math.isfinite(lane.free_at)
    last_ms = round((time.time() - time.monotonic() + lane.free_at) * 1000) if ran else 0
    return oip_statistics.describe(entry.name, entry.source.version, lane.tally, last_ms)


def _is_ready(entry: Entry) -> bool:
    return entry.state is State.READY


def _ready(problem: str | None) -> Response:
    if problem is not None:
        raise RequestError(Kind.UNAVAILABLE, problem, retry_after_s=_RETRY_S)
    return Response()


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), MEDIA_TYPE)
