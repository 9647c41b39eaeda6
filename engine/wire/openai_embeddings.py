"""``POST /v1/embeddings``: a request's texts go to the Embedder, its vectors become the answer."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from engine.embedder import Embedder
from engine.http.message import Request, Response
from engine.http.router import Route, post
from engine.serving import Serving
from engine.wire import embeddings
from engine.wire.body import read_object
from engine.wire.openai_answer import MEDIA_TYPE
from engine.wire.standing import read_standing

_RENDERED_IN_PLACE_TEXTS = 32  # about 1 ms of the event loop; more vectors are written in a thread


def routes(serving: Serving) -> list[Route]:
    """This module's part of the server."""

    async def create(request: Request) -> Response:
        standing = read_standing(request.headers, time.monotonic())
        body = await read_object(request, serving)
        async with serving.use(body.get("model"), Embedder) as model:
            asked = embeddings.parse(body, model.dimensions, model.shorter_dimensions)
            answer = await serving.watched(
                model.embed(
                    serving.device,
                    serving.pool,
                    asked.texts,
                    level=standing.priority,
                    deadline_at=standing.deadline_at,
                )
            )
        vectors = embeddings.shorten(answer.vectors, asked.dimensions)
        render = partial(embeddings.render, model.name, vectors, answer.num_tokens, as_base64=asked.base64)
        content = render() if len(asked.texts) <= _RENDERED_IN_PLACE_TEXTS else await asyncio.to_thread(render)
        headers = {"headrace-ignored": ", ".join(asked.ignored)} if asked.ignored else {}
        return Response(content, MEDIA_TYPE, headers)

    return [post("/v1/embeddings", create)]
