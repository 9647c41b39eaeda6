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

import orjson
from aiohttp import web

from engine.errors import RequestError
from engine.llm.chat import ChatModel
from engine.llm.sequence import Progress
from engine.serving import Serving
from engine.wire import sse
from engine.wire.body import read_object
from engine.wire.openai_answer import MEDIA_TYPE, Reply
from engine.wire.openai_request import ChatRequest, parse_chat_request

HEAD_WAIT_S = 0.5
SILENCE_S = 10.0  # after it a stream carries a comment, and the device is asked whether it is still well
SEND_TIMEOUT_S = 60.0  # a reader that takes nothing for so long is gone
_PARKED_AT_EVENTS = 64  # waiting for a slow reader; the sequence then pauses

_log = logging.getLogger(__name__)


def routes(serving: Serving) -> list[web.RouteDef]:
    """This module's part of the server."""

    async def create(request: web.Request) -> web.StreamResponse:
        asked = parse_chat_request(await read_object(request, serving))
        async with serving.use(asked.model, ChatModel) as model:
            return await _answer(serving, model, asked, request)

    return [web.post("/v1/chat/completions", create)]


async def _answer(serving: Serving, model: ChatModel, asked: ChatRequest, request: web.Request) -> web.StreamResponse:
    tokens = await model.encode(asked.messages)
    reply = Reply(f"chatcmpl-{uuid.uuid4().hex}", model.name, int(time.time()), usage=asked.include_usage)
    headers = {"headrace-ignored": ", ".join(asked.ignored)} if asked.ignored else {}
    generation = _Generation(serving, model, asked, tokens)
    try:
        if asked.stream:
            return await _stream(generation, reply, request, headers)
        return await _whole(generation, reply, headers)
    finally:
        generation.cancel()


class _Generation:
    """A job that the device works on, and where its events come."""

    def __init__(self, serving: Serving, model: ChatModel, asked: ChatRequest, tokens: list[int]) -> None:
        self._serving = serving
        self._lane = model.lane
        self._may_park = asked.stream  # a whole answer is taken at once, so its reader cannot be slow yet
        self._mailbox = sse.Mailbox(limit=_PARKED_AT_EVENTS, on_full=self._park, on_emptied=self._resume)
        self._sequence = model.sequence(
            tokens,
            max_tokens=asked.max_tokens,
            sampling=asked.sampling,
            seed=asked.seed,
            stops=asked.stops,
            deliver=self._mailbox.put,
        )
        serving.device.submit(self._lane, self._sequence)

    async def events(self, timeout_s: float) -> list[Progress | RequestError]:
        """What has come. Nothing in time: [] while the device is well, otherwise the error that ends this."""
        events = await self._mailbox.take(timeout_s)
        if not events and (error := self._serving.failure(time.monotonic())) is not None:
            return [error]
        return events

    @property
    def counts(self) -> tuple[int, int]:
        """Tokens of the prompt and of the answer so far."""
        return self._sequence.num_prompt_tokens, self._sequence.num_output_tokens

    def cancel(self) -> None:
        """Nobody wants more of it."""
        self._serving.device.cancel(self._lane, self._sequence)

    def _park(self) -> None:
        self._sequence.parked = self._may_park

    def _resume(self) -> None:
        self._sequence.parked = False
        self._serving.device.wake()


async def _whole(generation: _Generation, reply: Reply, headers: dict[str, str]) -> web.Response:
    texts: list[str] = []
    while True:
        for event in await generation.events(SILENCE_S):
            if isinstance(event, RequestError):
                raise event
            texts.append(event.text)
            if event.finish_reason is not None:
                body = reply.whole("".join(texts), event.finish_reason, *generation.counts)
                return web.Response(body=body, content_type=MEDIA_TYPE, headers=headers)


async def _stream(
    generation: _Generation, reply: Reply, request: web.Request, headers: dict[str, str]
) -> web.StreamResponse:
    events = await generation.events(HEAD_WAIT_S)
    if events and isinstance(events[0], RequestError):
        raise events[0]
    response = web.StreamResponse(headers={**sse.HEADERS, **headers})
    await response.prepare(request)
    try:
        await _send(response, events, generation, reply)
    except ConnectionError:
        _log.debug("a reader left")
    except TimeoutError:
        _log.warning("a reader took nothing for %.0f s and was cut off", SEND_TIMEOUT_S)
        _abort(request)
    except Exception:
        _log.exception("a stream broke off")
        _abort(request)
    return response


def _abort(request: web.Request) -> None:
    """The head is out: an error answer would land inside the open body, and a clean end would look complete."""
    if request.transport is not None:
        request.transport.abort()


async def _send(
    response: web.StreamResponse, events: list[Progress | RequestError], generation: _Generation, reply: Reply
) -> None:
    """Write the events and all that follow them, those of one step in one write."""
    opening = reply.first_chunk()
    while True:
        data, ended = _render(events, generation, reply)
        async with asyncio.timeout(SEND_TIMEOUT_S):
            if ended:
                # With the body's end in the same write: clients leave at [DONE], and would look as if they left early.
                await response.write_eof(opening + data)
                return
            await response.write(opening + data)
        opening = b""
        events = await generation.events(SILENCE_S)


def _render(events: list[Progress | RequestError], generation: _Generation, reply: Reply) -> tuple[bytes, bool]:
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
            pieces.append(reply.last_chunks(event.finish_reason, *generation.counts))
            return b"".join(pieces), True
    return b"".join(pieces), False
