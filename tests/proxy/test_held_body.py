"""A body that policies read: whole, once, bounded alone and together, and let go of at the end."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader

from proxy.body import BodyBroken, RequestBody
from proxy.errors import Kind
from proxy.exchange import Ending, Exchange
from proxy.gate import Refusal
from proxy.held_body import PARSED_IN_THREAD_BYTES, HeldBody, HeldBytes
from tests.proxy.make import exchange


def post(length: int | None, limit_bytes: int | None = None) -> Exchange:
    x = exchange("/v1/chat/completions", method="POST", has_body=True, content_length=length)
    x.body_limit_bytes = limit_bytes
    return x


def body(*pieces: bytes, complete: bool = True) -> RequestBody:
    protocol = BaseProtocol(asyncio.get_running_loop())
    protocol.connection_made(asyncio.Transport())
    payload = StreamReader(protocol, 1 << 20)
    for piece in pieces:
        payload.feed_data(piece)
    if complete:
        payload.feed_eof()
    return RequestBody(payload)


async def test_a_body_of_unknown_length_gets_one() -> None:
    x, together = post(None), HeldBytes()
    asked: list[int] = []
    taken = body(b'{"a"', complete=False)
    held = HeldBody(x, taken, together, lambda: asked.append(1))
    reading = asyncio.ensure_future(held.read_json())
    await asyncio.sleep(0)
    taken.payload.feed_data(b":1}")
    taken.payload.feed_eof()
    assert await reading == held.json == {"a": 1}
    assert await held.read() == held.data == b'{"a":1}'
    assert (x.content_length, x.bytes_in, together.num_bytes, asked) == (7, 7, 7, [1])
    held.release()
    assert together.num_bytes == 0


async def test_who_has_sent_the_body_is_not_asked_for_it() -> None:
    asked: list[int] = []
    assert await HeldBody(post(1), body(b"7"), HeldBytes(), lambda: asked.append(1)).read() == b"7"
    assert asked == []


async def test_what_replaces_it_is_sent_and_what_the_client_said_stays_seen() -> None:
    x = post(None)
    held = HeldBody(x, body(b'{"model":"m","messages":[{"content":"hi"}]}'), HeldBytes())
    await held.read_json()
    held.replace(b"{}")
    assert (held.data, x.content_length) == (b"{}", 2)
    assert held.llm is not None
    assert held.llm is held.llm
    assert held.llm.texts == ("hi",)


async def test_a_long_body_is_parsed_beside_the_loop() -> None:
    text = "x" * PARSED_IN_THREAD_BYTES
    held = HeldBody(post(None), body(json.dumps({"a": text}).encode()), HeldBytes())
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    assert await held.read_json() == {"a": text}
    counting.cancel()
    assert turns > 0


@pytest.mark.parametrize(
    ("length", "route_limit", "limit", "together", "status", "says"),
    [
        (11, None, 10, 100, 413, "10B"),
        (None, None, 10, 100, 413, "10B"),
        (None, 5, 10, 100, 413, "5B"),
        (None, None, 20, 6, 503, "6B"),
    ],
)
async def test_what_is_too_much_is_refused_with_the_limit(
    length: int | None, route_limit: int | None, limit: int, together: int, status: int, says: str
) -> None:
    shared = HeldBytes(together)
    held = HeldBody(post(length, route_limit), body(b"x" * 11), shared)
    assert await held.read(limit) == b""
    assert held.refusal is not None
    assert held.refusal.status == status
    assert held.refusal.close
    assert says in held.refusal.body.decode().replace(" ", "")
    assert held.ending is Ending.REFUSED
    assert await held.read_json() is None
    held.release()
    assert shared.num_bytes == 0


async def test_a_body_that_breaks_off_is_the_clients_fault() -> None:
    taken = body(b"ab", complete=False)
    held = HeldBody(post(None), taken, HeldBytes())
    taken.payload.set_exception(BodyBroken(Refusal(Kind.REQUEST_TIMEOUT, "no byte came for 60 s")))
    assert await held.read() == b""
    assert held.refusal is not None
    assert (held.refusal.status, held.ending) == (408, Ending.CLIENT_ERROR)
    assert held.llm is None
