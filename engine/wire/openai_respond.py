"""From a Generation's events to an HTTP answer, whole or streamed.

Owns the life of an answer on the event loop. Whatever ends it (the last token, an error, the client that left) also
ends its jobs. The head of a stream waits for the first event, so that a failure before it still has its own status, but
not longer than HEAD_WAIT_S; from then on a silent stream carries a comment now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import orjson

from engine.errors import RequestError
from engine.http.message import Request, Response
from engine.http.stream import Stream
from engine.llm.sampling import Choice
from engine.wire import sse
from engine.wire.generation import Event, Generation
from engine.wire.openai_answer import MEDIA_TYPE, Reply, Told, usage_fields

HEAD_WAIT_S = 0.5
SILENCE_S = 10.0  # after it a stream carries a comment, and the device is asked whether it is still well
SEND_TIMEOUT_S = 60.0  # a reader that takes nothing for so long is gone

_log = logging.getLogger(__name__)


async def respond(
    generation: Generation, reply: Reply, request: Request, headers: Mapping[str, str], *, stream: bool
) -> Response | Stream:
    """The answer, sent if it is a stream. Raises RequestError before anything is sent."""
    try:
        if stream:
            return await _stream(generation, reply, request, headers)
        return await _whole(generation, reply, headers)
    finally:
        generation.cancel()


async def _whole(generation: Generation, reply: Reply, headers: Mapping[str, str]) -> Response:
    texts: list[list[str]] = [[] for _ in range(generation.num_choices)]
    logprobs: list[list[Choice]] = [[] for _ in texts]
    reasons: dict[int, str] = {}
    while len(reasons) < len(texts):
        for index, event in await generation.events(SILENCE_S):
            if isinstance(event, RequestError):
                raise _with_usage(_again(event), generation)
            texts[index].append(event.text)
            logprobs[index] += event.logprobs
            if event.finish_reason is not None:
                reasons[index] = event.finish_reason
    choices = [Told("".join(text), logprobs[index], reasons[index]) for index, text in enumerate(texts)]
    return Response(reply.whole(choices, generation.usage), MEDIA_TYPE, headers)


async def _stream(
    generation: Generation, reply: Reply, request: Request, headers: Mapping[str, str]
) -> Response | Stream:
    events = await generation.events(HEAD_WAIT_S)
    if events and isinstance(first := events[0][1], RequestError):
        raise _again(first)
    stream = request.begin({**sse.HEADERS, **headers})
    try:
        await _send(stream, events, generation, reply)
    except ConnectionError:
        _log.debug("a reader left")
    except TimeoutError:
        _log.warning("a reader took nothing for %.0f s and was cut off", SEND_TIMEOUT_S)
        stream.abort()
    except Exception:
        _log.exception("a stream broke off")
        stream.abort()
    return stream


async def _send(stream: Stream, events: list[Event], generation: Generation, reply: Reply) -> None:
    """Write the events and all that follow them, those of one step in one write."""
    rendering = _Rendering(generation, reply)
    opening = reply.opening(generation.num_choices)
    while True:
        data = opening + rendering.render(events)
        async with asyncio.timeout(SEND_TIMEOUT_S):
            if rendering.ended:
                # With the body's end in the same write: clients leave at [DONE], and would look as if they left early.
                await stream.end(data)
                return
            await stream.write(data)
        opening = b""
        events = await generation.events(SILENCE_S)


def _again(error: RequestError) -> RequestError:
    """The same, to be raised: one that a variable has would hold those it was raised in, and they hold the variable."""
    return RequestError(error.kind, error.message, param=error.param, retry_after_s=error.retry_after_s)


def _with_usage(error: RequestError, generation: Generation) -> RequestError:
    """The same with what was used, where tokens were made that nobody gets."""
    usage = generation.usage
    if usage.num_output:
        error.usage = usage_fields(usage)
    return error


class _Rendering:
    """Events to bytes, until the last choice has ended or one has failed."""

    def __init__(self, generation: Generation, reply: Reply) -> None:
        self.ended = False
        self._generation = generation
        self._reply = reply
        self._num_open = generation.num_choices

    def render(self, events: list[Event]) -> bytes:
        """No events: a comment."""
        if not events:
            return sse.PING
        pieces: list[bytes] = []
        for index, event in events:
            if isinstance(event, RequestError):
                level = logging.ERROR if event.kind.status >= 500 else logging.INFO
                _log.log(level, "a stream ended with an error: %s", event.message)
                pieces.append(sse.event(orjson.dumps(event.body())))
                self.ended = True
                break
            if event.text or event.logprobs:
                pieces.append(self._reply.piece(index, event.text, event.logprobs))
            if event.finish_reason is not None:
                pieces.append(self._reply.last(index, event.finish_reason))
                self._num_open -= 1
                if not self._num_open:
                    pieces.append(self._reply.closing(self._generation.usage))
                    self.ended = True
        return b"".join(pieces)
