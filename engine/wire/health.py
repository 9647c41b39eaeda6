"""``GET /health``: whether the engine can serve now, by a round trip through the device's thread."""

from __future__ import annotations

import time

import orjson

from engine.errors import Kind, RequestError
from engine.http.message import Request, Response
from engine.http.router import Route, get
from engine.serving import Serving

_ROUND_TRIP_S = 5.0  # one run is far shorter; a hang is told at once by what problem() knows


def routes(serving: Serving) -> list[Route]:
    """This module's part of the server."""

    async def health(request: Request) -> Response:
        if (problem := await problem_of(serving)) is not None:
            raise RequestError(Kind.UNAVAILABLE, problem, retry_after_s=1)
        body = {"status": "ok", "models": sorted(serving.fleet.entries)}
        return Response(orjson.dumps(body), "application/json")

    return [get("/health", health)]


async def problem_of(serving: Serving) -> str | None:
    """Why the engine cannot serve now, whatever its models; None: it can."""
    problem = "draining" if serving.draining else serving.problem(time.monotonic())
    if problem is None and not await serving.device.ping(_ROUND_TRIP_S):
        problem = f"the runner did not answer within {_ROUND_TRIP_S:.0f} s"
    return problem
