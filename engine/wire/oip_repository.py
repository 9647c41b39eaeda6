"""``POST /v2/repository/index`` and ``/v2/repository/models/{model}/load`` and ``/unload``: Triton's model repository
extension of the Open Inference Protocol.

A load answers when requests have moved to the new model; an unload when no new request is given the old one. What
clients are told of a failure names no path. It is a 400, since it says nothing about the engine's own health.
"""

from __future__ import annotations

from typing import Any

import orjson

from engine.entry import State
from engine.errors import EngineError, Kind, RequestError, invalid
from engine.http.message import Request, Response
from engine.http.router import Route, post
from engine.serving import Serving
from engine.wire.body import Body, parse_object
from engine.wire.openai_answer import MEDIA_TYPE


def routes(serving: Serving) -> list[Route]:
    """This module's part of the server."""

    async def index(request: Request) -> Response:
        only_ready = _flag(await _read(request, serving), "ready")
        rows = [row for row in await serving.repository.index() if row.state is State.READY or not only_ready]
        tables = [
            {
                "name": row.name,
                **({"version": row.version} if row.version else {}),
                "state": row.state,
                "reason": row.reason,
            }
            for row in rows
        ]
        return Response(orjson.dumps(tables), MEDIA_TYPE)

    async def load(request: Request) -> Response:
        name = await _order(request, serving, taken=())
        try:
            await serving.repository.load(name)
        except EngineError:
            message = (
                f"the model {name!r} could not be loaded; what served before still does, the engine's log says why"
            )
            raise invalid(message) from None
        return Response()

    async def unload(request: Request) -> Response:
        name = await _order(request, serving, taken=("unload_dependents",))  # no model depends on another
        await serving.repository.unload(name)
        return Response()

    return [
        post("/v2/repository/index", index),
        post("/v2/repository/models/{model}/load", load),
        post("/v2/repository/models/{model}/unload", unload),
    ]


async def _order(request: Request, serving: Serving, taken: tuple[str, ...]) -> str:
    """The name of the model, when clients may give orders and the request has no parameters but those ``taken``."""
    if serving.control != "clients":
        raise RequestError(
            Kind.FORBIDDEN, "clients load and unload nothing here (models.control); use `headrace model` on the box"
        )
    parameters = (await _read(request, serving)).get("parameters") or {}
    if not isinstance(parameters, dict):
        raise invalid("parameters must be an object")
    if unknown := next((name for name in parameters if name not in taken), None):
        raise invalid(f"the parameter {unknown!r} is not taken: a model is what its folder in the repository holds")
    return request.names["model"]


async def _read(request: Request, serving: Serving) -> dict[str, Any]:
    """The JSON object that the request carries; an empty body is an empty object."""
    async with Body(request, serving) as pieces:
        raw = b"".join(pieces)
        return parse_object(raw) if raw.strip() else {}


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise invalid(f"{name} must be true or false")
    return value
