"""``GET /v1/models`` and ``GET /v1/models/{id}``: what this engine serves."""

from __future__ import annotations

from typing import Any

import orjson

from engine.entry import Entry
from engine.http.message import Request, Response
from engine.http.router import Route, get
from engine.serving import Serving
from engine.wire.openai_answer import MEDIA_TYPE


def routes(serving: Serving) -> list[Route]:
    """This module's part of the server."""

    async def list_models(request: Request) -> Response:
        return _json({"object": "list", "data": [_describe(entry) for entry in serving.fleet.entries.values()]})

    async def get_model(request: Request) -> Response:
        return _json(_describe(serving.get(request.names["model"])))

    return [get("/v1/models", list_models), get("/v1/models/{model:.+}", get_model)]


def _describe(entry: Entry) -> dict[str, Any]:
    return {"id": entry.name, "object": "model", "created": entry.source.created, "owned_by": "headrace"}


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), MEDIA_TYPE)
