"""Answers that come before the request was sent whole: limits met on the way, upstreams that have heard enough.

The client writes everything before it reads, and still reads the whole answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.wire.harness import OK, UpstreamSide, answering, app, edge, eventually, raw_upstream, reached
from tests.wire.tls import MATERIALS, TLS, tls_client

PIECE = b"x" * 65536
NUM_PIECES = 320
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
LENGTH = POST + b"Content-Length: %d\r\n\r\n" % (NUM_PIECES * len(PIECE))
NOPE = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 4\r\n\r\nnope"


def limited(port: int, body: str) -> dict[str, Any]:
    config = app(port)
    config["routes"][0]["policies"] = {"size_limit": {"body": body}}
    return config


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def takes_all(side: UpstreamSide) -> None:
    await side.head()
    await side.gone()


@pytest.mark.parametrize("size", [1, 1000, 65536, 100_000])
async def test_C04_no_byte_over_the_limit_goes_upstream(size: int) -> None:
    async with raw_upstream(takes_all) as upstream, edge(limited(upstream.port, "300000B")) as running:
        client = await running.connect()
        await client.send(CHUNKED)
        await eventually(lambda: bool(upstream.heads))
        sent = 0
        while sent <= 300_000:
            batch = min(64, -(-(300_001 - sent) // size))
            await client.send(chunk(b"x" * size) * batch)
            sent += size * batch
        answer = await client.answer()
        assert (answer.status, answer.get("connection")) == (413, "close")
        assert b"300000B" in answer.body
        await reached(upstream.left)
        body = upstream.received.removeprefix(upstream.heads[0])
        assert body.count(b"x") <= 300_000
        assert not body.endswith(b"0\r\n\r\n")


async def test_C04_what_is_exactly_the_limit_passes() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(limited(upstream.port, "10B")) as running:
        assert (await running.ask(POST + b"Content-Length: 10\r\n\r\n0123456789")).status == 200
        assert (await running.ask(CHUNKED + chunk(b"01234") * 2 + b"0\r\n\r\n")).status == 200
        assert (await running.ask(POST + b"Content-Length: 11\r\n\r\n0123456789a")).status == 413
        assert (await running.ask(CHUNKED + chunk(b"01234") * 2 + chunk(b"a") + b"0\r\n\r\n")).status == 413
        assert len(upstream.heads) == 2


async def test_C04_a_length_over_the_limit_is_refused_before_anything_is_sent() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(limited(upstream.port, "1MiB")) as running:
        client = await running.connect()
        await client.send(LENGTH[:-2] + b"Expect: 100-continue\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.get("connection")) == (413, "close")
        assert upstream.num_connections == 0


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
async def test_C04_over_tls_too_the_refusal_is_read_after_the_upload(chunked: bool) -> None:
    async with raw_upstream(takes_all) as upstream:
        config = {**limited(upstream.port, "1MiB"), "listener": TLS}
        async with edge(config, materials=MATERIALS) as running, tls_client(running) as client:
            client.writer.write((CHUNKED if chunked else LENGTH).replace(b"Host: x", b"Host: a.example"))
            for _ in range(NUM_PIECES):
                client.writer.write(chunk(PIECE) if chunked else PIECE)
                await client.writer.drain()
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 413 ")
            assert b"1MiB" in await client.reader.read(65536)


@pytest.mark.parametrize("reads", ["nothing", "64 kB", "all"])
@pytest.mark.parametrize("head", [LENGTH, CHUNKED], ids=["length", "chunks"])
async def test_C04_an_upstream_that_has_heard_enough_is_heard(head: bytes, reads: str) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.head()
        while reads == "64 kB" and len(side._upstream.received) < 65536:
            await side.receive()
        await side.send(NOPE)
        if reads == "all":
            await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(head)
        for _ in range(NUM_PIECES):
            await client.send(chunk(PIECE) if head is CHUNKED else PIECE)
        answer = await client.answer()
        assert (answer.status, answer.body, answer.get("connection")) == (401, b"nope", "close")
        assert not upstream.received.endswith(b"0\r\n\r\n")
        await eventually(lambda: not running.worker._relays)
        assert len(upstream.heads) == 1


async def test_C04_an_upstream_may_answer_while_it_is_still_sent_to() -> None:
    heard = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.head()
        await side.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"begun"))
        while b"last" not in side._upstream.received:
            await side.receive()
        heard.set()
        await side.send(chunk(b"done") + b"0\r\n\r\n")
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(POST + b"Content-Length: 9\r\n\r\nfirst")
        await client.until(b"begun")
        await client.send(b"last")
        await reached(heard)
        assert (await client.until(b"0\r\n\r\n")).endswith(chunk(b"done") + b"0\r\n\r\n")


async def test_C04_a_client_that_stops_in_the_middle_of_an_early_answer_is_told_nothing_false() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.head()
        await side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
        await side.gone()

    limits = {"limits": {"body_idle": "100ms"}}
    async with raw_upstream(script) as upstream, edge({**app(upstream.port), "listener": limits}) as running:
        client = await running.connect()
        await client.send(POST + b"Content-Length: 9\r\n\r\nfirst")
        rest, ending = await client.rest()
        assert rest.endswith(b"hello")
        assert ending == "rst"
        await reached(upstream.left)


async def test_C04_the_rest_of_an_upload_is_drained_within_bounds() -> None:
    """After a refusal a client that goes on for ever is cut off."""
    async with raw_upstream(answering(OK)) as upstream, edge(limited(upstream.port, "1B")) as running:
        client = await running.connect()
        await client.send(POST + b"Content-Length: 999999999999\r\n\r\n")
        sent = 0
        while not client.sock._closed and sent < (200 << 20):
            try:
                await asyncio.get_running_loop().sock_sendall(client.sock, PIECE)
            except ConnectionError:
                break
            sent += len(PIECE)
        assert (64 << 20) - (1 << 20) < sent < (80 << 20)
        await eventually(lambda: not running.worker._open())
