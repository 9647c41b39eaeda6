"""``POST /v1/classify``: pictures and texts in, the best classes of each out.

Owns a request's way from its body to its answer. What it sends is held, and counted among the bodies of all requests,
until the model has answered; nothing of it is decoded before the model has a place for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from engine.errors import Kind, RequestError, invalid
from engine.http.message import Request, Response
from engine.http.router import Route, post
from engine.serving import Serving
from engine.tensor_facts import CLASSES, SCORES
from engine.tensors.model import TensorModel
from engine.tensors.raw_rows import Feeds, infer_raw
from engine.wire import classify_request
from engine.wire.body import PARSED_IN_THREAD_BYTES, Body, parse_object
from engine.wire.classify_request import ClassifyRequest, What
from engine.wire.openai_answer import MEDIA_TYPE
from engine.wire.standing import read_standing


def routes(serving: Serving) -> list[Route]:
    """This module's part of the server."""

    async def create(request: Request) -> Response:
        standing = read_standing(request.headers, time.monotonic())
        async with Body(request, serving) as pieces:
            asked = await _read(request, pieces)
            async with serving.use(asked.model, TensorModel) as model:
                inputs = _inputs(model)
                rows = [
                    {inputs[what]: raw for what, raw in row.items()} for row in asked.rows_for(list(inputs), model.name)
                ]
                num_best = _num_best(model, asked)
                work = infer_raw(
                    serving.pool,
                    serving.device,
                    model,
                    rows,
                    asked.places(),
                    outputs=(SCORES, CLASSES),
                    level=standing.priority,
                    deadline_at=standing.deadline_at,
                )
                answers = await serving.watched(work)
        content = render(model.name, model.labels, answers, num_best)
        headers = {"headrace-ignored": ", ".join(asked.ignored)} if asked.ignored else {}
        return Response(content, MEDIA_TYPE, headers)

    return [post("/v1/classify", create)]


def render(model: str, labels: Sequence[str], answers: Sequence[Feeds], num_best: int) -> bytes:
    """The answer's body: of each row the best classes, in falling order. Raises RequestError (500)."""
    data = []
    for index, answer in enumerate(answers):
        scores, classes = answer[SCORES][0, :num_best], answer[CLASSES][0, :num_best]
        if not np.isfinite(scores).all():
            raise RequestError(Kind.FAILED, f"the model {model!r} gave no finite scores for input[{index}]")
        best: list[dict[str, Any]] = [
            {"class": number, "label": labels[number] if number < len(labels) else None, "score": score}
            for number, score in zip(classes.tolist(), scores.tolist(), strict=True)
        ]
        first = {"label": best[0]["label"], "score": best[0]["score"]}
        data.append({"object": "classification", "index": index, **first, "classes": best})
    return orjson.dumps({"object": "list", "model": model, "data": data})


async def _read(request: Request, pieces: list[bytes | memoryview]) -> ClassifyRequest:
    body = b"".join(pieces)
    media_type = request.content_type
    if "content-type" not in request.headers or media_type == "application/json" or media_type.endswith("+json"):
        in_thread = len(body) > PARSED_IN_THREAD_BYTES
        return classify_request.of_json(
            await asyncio.to_thread(parse_object, body) if in_thread else parse_object(body)
        )
    query = _query(request)
    if media_type == "multipart/form-data":
        return classify_request.of_form(request.headers["content-type"], body, query)
    return classify_request.of_raw(media_type, body, query)


def _query(request: Request) -> dict[str, str]:
    query = request.query
    if unknown := next((name for name in query if name not in ("model", "top_k")), None):
        raise invalid(f"the query has {unknown[:64]!r}; it may have model and top_k", unknown[:64])
    return query


def _inputs(model: TensorModel) -> dict[What, str]:
    """Which input each thing that the model takes is for. Raises RequestError (400) when it classifies nothing."""
    manifest = model.folder.manifest
    if manifest.classify is None:
        raise invalid(
            f"the model {model.name!r} has no table classify in its model.yaml; ask /v2/models/{model.name}", "model"
        )
    adapter = manifest.adapter
    inputs: dict[What, str] = {}
    if adapter is not None and adapter.image is not None:
        inputs["image"] = adapter.image.input
    if adapter is not None and adapter.text is not None:
        inputs["text"] = adapter.text.ids
    if not inputs:
        raise invalid(
            f"the model {model.name!r} has no table adapter in its model.yaml; ask /v2/models/{model.name}", "model"
        )
    return inputs


def _num_best(model: TensorModel, asked: ClassifyRequest) -> int:
    facts = model.folder.manifest.classify
    most = facts.top_k if facts else 0
    if asked.top_k is not None and asked.top_k > most:
        raise invalid(
            f"top_k is {asked.top_k}; the model {model.name!r} gives at most {most} (classify.top_k in its model.yaml)",
            "top_k",
        )
    return asked.top_k or most
