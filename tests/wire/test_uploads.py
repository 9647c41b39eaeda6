"""Request bodies: streamed, re-framed, refused early, and never taken for a request."""

from __future__ import annotations

import asyncio

import pytest

from tests.wire.harness import OK, UpstreamSide, answering, app, edge, eventually, raw_upstream, reached
from tests.wire.test_reused_connections import refused_port

DENYING = {"access": {"allow": ["10.0.0.0/8"]}}


def denied(port: int) -> dict[str, object]:
    """Everything is forbidden but /health."""
    config = app(port)
    config["routes"] = [{"to": "app", "policies": DENYING}, {"to": "app", "match": {"path": "/health"}}]
    return config


async def test_A16_body_bytes_are_never_parsed_as_a_request() -> None:
    body = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    async with raw_upstream(answering(OK)) as upstream, edge(denied(upstream.port)) as running:
        client = await running.connect()
        await client.send(b"POST /denied HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        assert (await client.answer()).status == 403
        await client.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b"ok")
        assert len(upstream.heads) == 1


async def test_A16_a_body_that_comes_after_its_refusal_is_dropped() -> None:
    body = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    async with raw_upstream(answering(OK)) as upstream, edge(denied(upstream.port)) as running:
        client = await running.connect()
        await client.send(b"POST /denied HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
        answer = await client.answer()
        assert answer.status == 403
        assert answer.get("connection") == "close"
        await client.send(body + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        client.sock.shutdown(1)
        assert (await client.rest())[0] == b""
        assert upstream.received == b""


LIMITED = {"size_limit": {"body": "1MiB"}}


@pytest.mark.parametrize("chunked", [False, True])
async def test_C04_the_whole_refusal_is_read_after_the_whole_upload(chunked: bool) -> None:
    size = 20 << 20
    async with raw_upstream(answering(OK)) as upstream:
        config = {**app(upstream.port), "routes": [{"to": "app", "policies": LIMITED}]}
        async with edge(config) as running:
            client = await running.connect()
            framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
            await client.send(b"POST / HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n")
            piece = b"x" * 65536
            for _ in range(size // len(piece)):
                await client.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            answer = await client.answer()
            assert answer.status == 413
            assert b"1MiB" in answer.body
            if not chunked:
                assert upstream.received == b""


async def test_C04_an_early_answer_of_the_upstream_is_read_after_the_whole_upload() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.head()
        await side.send(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 4\r\n\r\nnope")
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\n\r\n")
        for _ in range(20):
            await client.send(b"x" * 1_000_000)
        answer = await client.answer()
        assert (answer.status, answer.body) == (401, b"nope")
        await reached(upstream.left)


async def test_an_upload_is_streamed_not_collected() -> None:
    first = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.head()
        while b"first" not in side._upstream.received:
            await side.receive()
        first.set()
        while b"last" not in side._upstream.received:
            await side.receive()
        await side.send(OK)
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nfirst")
        await reached(first)
        await client.send(b"last")
        assert (await client.answer()).body == b"ok"


async def test_chunks_are_made_anew_and_trailers_dropped() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        answer = await running.ask(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2;a=b\r\nhe\r\n3\r\nllo\r\n0\r\nX-Trailer: 1\r\n\r\n"
        )
        assert answer.status == 200
        assert b"Transfer-Encoding: chunked\r\n" in upstream.heads[0]
        body = upstream.received.removeprefix(upstream.heads[0])
        assert body == b"5\r\nhello\r\n0\r\n\r\n"


@pytest.mark.parametrize("length", [b"Content-Length: 0\r\n", b""])
async def test_a_post_without_a_body_is_framed_as_such(length: bytes) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        assert (await running.ask(b"POST / HTTP/1.1\r\nHost: x\r\n" + length + b"\r\n")).status == 200
        assert b"Transfer-Encoding" not in upstream.heads[0]
        assert (b"Content-Length: 0" in upstream.heads[0]) == bool(length)


async def test_100_continue_is_told_when_the_body_is_wanted() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"hi")
        assert (await client.answer()).body == b"ok"
        assert b"expect" not in upstream.heads[0].lower()


async def test_100_continue_is_not_told_when_the_body_is_not_wanted() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(denied(upstream.port)) as running:
        answer = await running.ask(
            b"POST /denied HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        assert answer.status == 403
        assert answer.get("connection") == "close"


async def test_a_body_that_stops_coming_is_a_408() -> None:
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge({**app(upstream.port), "listener": {"limits": {"body_idle": "100ms"}}}) as running,
    ):
        answer = await running.ask(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhello")
        assert answer.status == 408
        await eventually(lambda: not running.worker._relays)


async def test_A05_a_body_that_turns_out_malformed_never_looks_complete_upstream() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.head()
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await eventually(lambda: b"hello" in upstream.received)
        await client.send(b"5\nworld\r\n0\r\n\r\n")
        answer = await client.answer()
        assert answer.status == 400
        assert answer.get("connection") == "close"
        await reached(upstream.left)
        assert not upstream.received.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("flood", [b"1;" + b"a" * 1_000_000, b"0\r\n" + b"X-T: aaaaaaaa\r\n" * 100_000])
async def test_A17_frames_that_outweigh_the_body_are_refused(flood: bytes) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await eventually(lambda: bool(upstream.heads))
        await client.send(flood)
        answer = await client.answer()
        assert answer.status in (400, 431)
        assert not upstream.received.partition(b"\r\n\r\n")[2].endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("request_head", "status", "limit"),
    [
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, b"16384"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nCookie: " + b"a" * 70_000 + b"\r\n\r\n", 431, b"16384"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 2000 + b"\r\n", 431, b"128"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + (b"X-A: " + b"b" * 9000 + b"\r\n") * 10 + b"\r\n", 431, b"65536"),
    ],
)
async def test_A17_what_is_too_long_is_told_with_its_limit(request_head: bytes, status: int, limit: bytes) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        answer = await running.ask(request_head)
        assert answer.status == status
        assert limit in answer.body
        assert upstream.received == b""


async def test_A19_a_compressed_body_passes_encoded() -> None:
    body = b"\x1f\x8b" + bytes(range(200))
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
        assert (await running.ask(head + body)).status == 200
        assert upstream.received.endswith(body)
        assert b"Content-Encoding: gzip" in upstream.heads[0]


SIZES = [b"5 ", b" 5", b"5\t", b"+5", b"-5", b"0x5", b"5h", b"", b";a", b"5\r", b"5_0", b"1" + b"0" * 16, b"F" * 17,
         b"\xc2\xb5", b"5;a\x00", b"5;a\x07b", b"5\x00", b"5,5"]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=repr)
async def test_A05_a_chunk_size_is_hexadecimal_digits_alone(size: bytes) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.head()
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        await eventually(lambda: b"ok" in upstream.received)
        await client.send(size + b"\r\nhello\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.get("connection")) == (400, "close")
        assert (await client.rest())[0] == b""
        await reached(upstream.left)
        assert upstream.received.removeprefix(upstream.heads[0]) == b"2\r\nok\r\n"


@pytest.mark.parametrize("size", [b"5", b"005", b"5;a=b", b'5;a="b;c"', b"5;a"])
async def test_A05_what_is_a_chunk_size_goes_on_without_its_extension(size: bytes) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert (await running.ask(head + size + b"\r\nhello\r\n00;x\r\n\r\n")).status == 200
        assert upstream.received.removeprefix(upstream.heads[0]) == b"5\r\nhello\r\n0\r\n\r\n"


EXPECTING = b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-Continue\r\n\r\n"


async def test_100_continue_is_not_told_when_nobody_can_be_reached() -> None:
    async with edge(app(refused_port())) as running:
        answer = await running.ask(EXPECTING)
        assert (answer.status, answer.get("connection")) == (502, "close")


async def test_100_continue_is_told_once_however_often_it_is_tried() -> None:
    async def script(side: UpstreamSide) -> None:
        while await side.head() is not None:
            if len(side._upstream.heads) == 1:
                return
            while not side._upstream.received.endswith(b"body"):
                await side.receive()
            await side.send(OK)

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(EXPECTING)
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await eventually(lambda: len(upstream.heads) == 2)
        await client.send(b"body")
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b"ok")


async def test_100_continue_is_not_told_for_a_body_that_is_here_already() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        for _ in range(2):
            await client.send(EXPECTING + b"body")
            assert (await client.answer()).status == 200
        assert b"expect" not in upstream.received.lower()


async def test_100_continue_and_the_refusal_of_a_body_that_grows_too_large() -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = {**app(upstream.port), "routes": [{"to": "app", "policies": {"size_limit": {"body": "10B"}}}]}
        async with edge(config) as running:
            client = await running.connect()
            await client.send(
                b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
            )
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(b"b\r\n01234567890\r\n")
            answer = await client.answer()
            assert (answer.status, answer.get("connection")) == (413, "close")
