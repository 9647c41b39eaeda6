"""``POST /v1/chat/completions``: a request becomes a job, its events become the answer.

Owns the life of one request on the event loop. Whatever ends the handler (the last token, an error, the client that
left) also ends the job. The head of a stream waits for the first event, so that a failure before it still has its own
status, but not longer than HEAD_WAIT_S; from then on a silent stream carries a comment now and then.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import NamedTuple

import orjson
from aiohttp import web

from engine.errors import RequestError
from engine.llm.chat import ChatModel
from engine.llm.sequence import Progress, Sequence
from engine.serving import Serving
from engine.wire import sse
from engine.wire.body import read_object
from engine.wire.openai_answer import MEDIA_TYPE, Reply
from engine.wire.openai_request import ChatRequest, parse_chat_request

HEAD_WAIT_S = 0.5
PING_S = 10.0
SEND_TIMEOUT_S = 60.0  # a reader that takes nothing for so long is gone
_PARKED_AT_EVENTS = 64  # waiting for a slow reader; the sequence then pauses

_log = logging.getLogger(__name__)


def routes(serving: Serving) -> list[web.RouteDef]:
    """This module's part of the server."""

    async def create(request: web.Request) -> web.StreamResponse:
        asked = parse_chat_request(await read_object(request, serving.max_body_bytes))
        model = serving.find(asked.model, ChatModel)
        with serving.place(model):
            return await _answer(serving, model, asked, request)

    return [web.post("/v1/chat/completions", create)]


class _Running(NamedTuple):
    """A job that the device works on, and where its events come."""

    sequence: Sequence
    mailbox: sse.Mailbox


async def _answer(serving: Serving, model: ChatModel, asked: ChatRequest, request: web.Request) -> web.StreamResponse:
    tokens = await model.encode(asked.messages)
    reply = Reply(f"chatcmpl-{uuid.uuid4().hex}", model.name, int(time.time()), usage=asked.include_usage)
    headers = {"headrace-ignored": ", ".join(asked.ignored)} if asked.ignored else {}
    running = _start(serving, model, asked, tokens)
    try:
        if asked.stream:
            return await _stream(running, reply, request, headers)
        return await _whole(running, reply, headers)
    finally:
        serving.device.cancel(model.lane, running.sequence)


def _start(serving: Serving, model: ChatModel, asked: ChatRequest, tokens: list[int]) -> _Running:
    def park() -> None:
        sequence.parked = asked.stream

    def resume() -> None:
        sequence.parked = False
        serving.device.wake()

    mailbox = sse.Mailbox(limit=_PARKED_AT_EVENTS, on_full=park, on_emptied=resume)
    sequence = model.sequence(
        tokens,
        max_tokens=asked.max_tokens,
        sampling=asked.sampling,
        seed=asked.seed,
        stops=asked.stops,
        deliver=mailbox.put,
    )
    serving.device.submit(model.lane, sequence)
    return _Running(sequence, mailbox)


async def _whole(running: _Running, reply: Reply, headers: dict[str, str]) -> web.Response:
    texts: list[str] = []
    while True:
        for event in await running.mailbox.take():
            if isinstance(event, RequestError):
                raise event
            texts.append(event.text)
            if event.finish_reason is not None:
                sequence = running.sequence
                counts = (sequence.num_prompt_tokens, sequence.num_output_tokens)
                body = reply.whole("".join(texts), event.finish_reason, *counts)
                return web.Response(body=body, content_type=MEDIA_TYPE, headers=headers)


async def _stream(running: _Running, reply: Reply, request: web.Request, headers: dict[str, str]) -> web.StreamResponse:
    events = await running.mailbox.take(HEAD_WAIT_S)
    if events and isinstance(events[0], RequestError):
        raise events[0]
    response = web.StreamResponse(headers={**sse.HEADERS, **headers})
    await response.prepare(request)
    opening = reply.first_chunk()
    while True:
        data, ended = _render(events, running.sequence, reply)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await response.write(opening + data)
        except TimeoutError:
            raise ConnectionAbortedError(f"the reader took nothing for {SEND_TIMEOUT_S:.0f} s") from None
        if ended:
            await response.write_eof()
            return response
        opening = b""
        events = await running.mailbox.take(PING_S)


def _render(events: list[Progress | RequestError], sequence: Sequence, reply: Reply) -> tuple[bytes, bool]:
    """The events' bytes, and whether they end the stream. No events: a comment."""
    if not events:
        return sse.PING, False
    pieces: list[bytes] = []
    for event in events:
        if isinstance(event, RequestError):
            _log.error("a stream ended with an error: %s", event.message)
            pieces.append(sse.event(orjson.dumps(event.body())))
            return b"".join(pieces), True
        if event.text:
            pieces.append(reply.text_chunk(event.text))
        if event.finish_reason is not None:
            counts = (sequence.num_prompt_tokens, sequence.num_output_tokens)
            pieces.append(reply.last_chunks(event.finish_reason, *counts))
            return b"".join(pieces), True
    return b"".join(pieces), False
