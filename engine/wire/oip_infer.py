"""``POST /v2/models/{name}/infer``: tensors in, tensors out, as JSON or in binary form.

Owns a request's way from its body to its answer. The body is held, and counted among those of all requests, until the
model has answered: the tensors lie in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple

from engine.embedder import Embedder
from engine.entry import Entry
from engine.errors import invalid
from engine.http.message import Request, Response
from engine.http.stream import Stream
from engine.serving import Serving
from engine.tensor_facts import TensorModelFacts
from engine.tensors.check import Feeds, check_inputs
from engine.tensors.model import TensorModel
from engine.wire import oip_answer
from engine.wire.body import PARSED_IN_THREAD_BYTES, Body
from engine.wire.embeddings import MAX_TEXTS
from engine.wire.oip_adapted import adapted_inputs, infer_adapted
from engine.wire.oip_body import HEADER_LENGTH, announced, divide, json_length
from engine.wire.oip_header import outline_of
from engine.wire.oip_metadata import EMBEDDING, TEXT, embedding_facts
from engine.wire.oip_raw import parse_raw
from engine.wire.oip_request import InferRequest, fill
from engine.wire.openai_answer import MEDIA_TYPE
from engine.wire.standing import read_standing

_BINARY_MEDIA_TYPE = "application/octet-stream"
_HEADER_LENGTH = HEADER_LENGTH.lower()
_RENDERED_IN_PLACE_ELEMENTS = 8192  # about 1 ms of the event loop; longer JSON is written in a thread


class Parts(NamedTuple):
    """Of an answer, as ``oip_answer.render`` takes them."""

    model: str
    version: str
    request_id: str | None
    wanted: list[oip_answer.Wanted]
    arrays: Feeds


async def infer(request: Request, serving: Serving, entry: Entry) -> Response | Stream:
    """The answer. Raises RequestError before anything of it is sent."""
    arrived_at = time.monotonic()
    if entry.kind == "chat":
        raise invalid(f"the model {entry.name!r} takes no tensors; ask POST /v1/chat/completions", "model")
    work = _embed if entry.kind == "embedding" else _run
    align_at = announced(request.headers.get(_HEADER_LENGTH))
    async with Body(request, serving, align_at=align_at) as pieces:
        asked, parts = await work(request, serving, entry, pieces, arrived_at)
    as_json = sum(parts.arrays[each.tensor.name].size for each in parts.wanted if not each.binary)
    if as_json > _RENDERED_IN_PLACE_ELEMENTS:
        head, binary = await asyncio.to_thread(oip_answer.render, *parts)
    else:
        head, binary = oip_answer.render(*parts)
    headers = {"headrace-ignored": ", ".join(asked.ignored)} if asked.ignored else {}
    return _rendered(head, binary, headers)


async def _run(
    request: Request, serving: Serving, entry: Entry, pieces: list[bytes | memoryview], arrived_at: float
) -> tuple[InferRequest, Parts]:
    """What a tensor model makes of the request."""
    async with serving.use(entry.name, TensorModel) as model:
        asked = await _read(request, pieces, model.facts)
        wanted = oip_answer.choose(asked, model.facts.outputs)
        level, deadline_at = _standing(request, asked, arrived_at)
        work: Coroutine[Any, Any, Feeds]
        if adapted := adapted_inputs(model, asked.inputs):
            work = infer_adapted(
                serving.pool, serving.device, model, asked.inputs, adapted, level=level, deadline_at=deadline_at
            )
        else:
            work = model.infer(serving.device, asked.inputs, level=level, deadline_at=deadline_at)
        return asked, Parts(entry.name, model.folder.manifest.version, asked.id, wanted, await serving.watched(work))


async def _embed(
    request: Request, serving: Serving, entry: Entry, pieces: list[bytes | memoryview], arrived_at: float
) -> tuple[InferRequest, Parts]:
    """What an embedding model makes of the request's texts."""
    async with serving.use(entry.name, Embedder) as embedder:
        facts = embedding_facts(embedder.dimensions)
        asked = await _read(request, pieces, facts)
        wanted = oip_answer.choose(asked, facts.outputs)
        texts = check_inputs(facts, asked.inputs)[TEXT].tolist()
        if len(texts) > MAX_TEXTS:
            raise invalid(f"the input {TEXT!r} has {len(texts)} texts; at most {MAX_TEXTS} are taken at a time")
        level, deadline_at = _standing(request, asked, arrived_at)
        work = embedder.embed(serving.device, serving.pool, texts, level=level, deadline_at=deadline_at)
        arrays = {EMBEDDING: (await serving.watched(work)).vectors}
        return asked, Parts(entry.name, entry.source.version, asked.id, wanted, arrays)


async def _read(request: Request, pieces: list[bytes | memoryview], facts: TensorModelFacts) -> InferRequest:
    """The request in the body, whose bytes its tensors may share; a large one is parsed in a thread."""
    size = sum(map(len, pieces))
    said = request.headers.get(_HEADER_LENGTH)
    length = json_length(() if said is None else (said,), size)

    def parse() -> InferRequest:
        header, binary = divide(pieces, size if length is None else length)
        return (
            parse_raw(binary, facts.inputs)
            if length == 0
            else fill(outline_of(header, has_binary=len(binary) > 0), binary)
        )

    json_bytes = size if length is None else length
    has_strings = any(tensor.datatype == "BYTES" for tensor in facts.inputs)  # read one by one also in binary form
    if (size if has_strings else json_bytes) > PARSED_IN_THREAD_BYTES:
        return await asyncio.to_thread(parse)
    return parse()


def _standing(request: Request, asked: InferRequest, arrived_at: float) -> tuple[int, float | None]:
    """Level and deadline: the request's own parameters, else what its headers say; of two deadlines the nearer one."""
    standing = read_standing(request.headers, arrived_at)
    level = standing.priority if asked.level is None else asked.level
    if asked.timeout_s is None:
        return level, standing.deadline_at
    deadline_at = arrived_at + asked.timeout_s
    return level, deadline_at if standing.deadline_at is None else min(deadline_at, standing.deadline_at)


def _rendered(head: bytes, binary: list[memoryview], headers: Mapping[str, str]) -> Response:
    """Large tensors are written from where they lie."""
    if not binary:
        return Response(head, MEDIA_TYPE, headers)
    return Response([head, *binary], _BINARY_MEDIA_TYPE, {**headers, HEADER_LENGTH: str(len(head))})
