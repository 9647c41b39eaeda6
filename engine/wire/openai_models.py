"""``GET /v1/models`` and ``GET /v1/models/{id}``: what this engine serves."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from engine.entry import Entry
from engine.serving import Serving
from engine.wire.openai_answer import MEDIA_TYPE


def routes(serving: Serving) -> list[web.RouteDef]:
    """This module's part of the server."""

    async def list_models(request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [_describe(entry) for entry in serving.fleet.entries.values()]})

    async def get_model(request: web.Request) -> web.Response:
        return _json(_describe(serving.get(request.match_info["model"])))

    return [web.get("/v1/models", list_models), web.get("/v1/models/{model:.+}", get_model)]


def _describe(entry: Entry) -> dict[str, Any]:
    return {"id": entry.name, "object": "model", "created": entry.source.created, "owned_by": "headrace"}


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type=MEDIA_TYPE)
