"""What a client should not send, and clients that leave: each ends its own request, and nothing of it stays."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from pathlib import Path
from typing import cast

import pytest

from engine.errors import RequestError
from engine.http.message import Request, Response
from engine.http.stream import Stream
from tests.engine.http.raw_client import GET, client_of, collect, echo

CHUNKED = b"POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"

UNREADABLE = {
    "a folded header": b"GET / HTTP/1.1\r\nX: a\r\n b\r\n\r\n",
    "a length twice": b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": b"POST / HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\nabc",
    "a length beyond numbers": b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    "chunks that are not last": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a coding that is not spoken": b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "a body before another protocol": (
        b"POST / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: 3\r\n\r\nabc"
    ),
}


@pytest.mark.parametrize("request_", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_a_head_that_two_could_read_differently_is_a_400(tmp_path: Path, request_: bytes) -> None:
    async with client_of(tmp_path, echo) as client:
        client.writer.write(request_)
        assert (await client.answer())[0] == 400
        assert await client.reader.read() == b""


@pytest.mark.parametrize(
    "chunk", [b"0x3\r\nabc\r\n", b"+3\r\nabc\r\n", b"-3\r\nabc\r\n", b"3\nabc\n", b"3\r\nabcd\r\n"]
)
async def test_a_chunk_of_another_size_than_it_says_is_a_400(tmp_path: Path, chunk: bytes) -> None:
    async with client_of(tmp_path, echo) as client:
        client.writer.write(CHUNKED + b"\r\n" + chunk + b"0\r\n\r\n")
        assert (await client.answer())[0] == 400
        assert await client.reader.read() == b""


async def test_a_trailer_is_no_header_of_its_request(tmp_path: Path) -> None:
    async def handler(request: Request) -> Response:
        await collect(request)
        return Response(repr(request.headers).encode())

    async with client_of(tmp_path, handler) as client:
        body = b"3\r\nabc\r\n0\r\nheadrace-key: another\r\nX: 2\r\n\r\n"
        for _ in range(2):
            client.writer.write(CHUNKED + b"X: 1\r\n\r\n" + body)
            assert await client.answer() == (200, b"{'transfer-encoding': 'chunked', 'x': '1'}")


ENDLESS = {
    "a trailer": b"0\r\nX: " + b"x" * (2 << 20),
    "trailers": b"0\r\n" + b"a: b\r\n" * 1001 + b"\r\n",
    "a chunk's extension": b"3;" + b"x" * (2 << 20),
}


@pytest.mark.parametrize("rest", ENDLESS.values(), ids=ENDLESS.keys())
async def test_what_surrounds_a_body_is_bounded(tmp_path: Path, rest: bytes) -> None:
    async with client_of(tmp_path, echo) as client:
        client.writer.write(CHUNKED + b"\r\n3\r\nabc\r\n" + rest)
        assert (await client.answer())[0] == 400
        with contextlib.suppress(ConnectionError):
            assert await client.reader.read() == b""


async def test_white_space_behind_a_value_is_none_of_it(tmp_path: Path) -> None:
    async def handler(request: Request) -> Response:
        return Response(repr((request.headers, request.body.length)).encode())

    async with client_of(tmp_path, handler) as client:
        client.writer.write(b"POST / HTTP/1.1\r\nX: a b \t\r\nContent-Length: 3  \r\n\r\nabc")
        assert await client.answer() == (200, b"({'x': 'a b', 'content-length': '3'}, 3)")


async def test_who_speaks_http_1_0_is_not_told_to_go_on(tmp_path: Path) -> None:
    async with client_of(tmp_path, echo) as client:
        client.writer.write(b"POST /b HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        await client.writer.drain()
        client.writer.write(b"abc")
        assert await client.answer() == (200, b"POST /b {} abc")


@pytest.mark.parametrize("request_", [b"CONNECT a:1", b"GET /a"])
async def test_the_last_answer_before_another_protocol_says_so(tmp_path: Path, request_: bytes) -> None:
    async with client_of(tmp_path, echo) as client:
        client.writer.write(request_ + b" HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nother")
        assert (await client.head())[1]["connection"] == "close"


async def test_a_request_behind_a_stream_waits_for_its_end(tmp_path: Path) -> None:
    may_end = asyncio.Event()

    async def handler(request: Request) -> Response | Stream:
        if request.method == "POST":
            return Response(await collect(request))
        stream = request.begin({})
        await stream.write(b"one")
        await may_end.wait()
        await stream.end(b"two")
        return stream

    async with client_of(tmp_path, handler) as client:
        client.writer.write(GET)
        await client.head()
        assert await client.reader.readexactly(8) == b"3\r\none\r\n"
        body = bytes(range(256)) * 4000
        client.writer.write(b"POST /b HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        may_end.set()
        assert await client.reader.readexactly(13) == b"3\r\ntwo\r\n0\r\n\r\n"
        assert await client.answer() == (200, body)


async def test_who_sends_no_more_and_takes_nothing_is_gone(tmp_path: Path) -> None:
    full, left = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> Stream:
        stream = request.begin({})
        try:
            while True:
                asyncio.get_running_loop().call_later(0.2, full.set)
                await stream.write(bytes(1 << 20))
        finally:
            left.set()

    async with client_of(tmp_path, handler) as client:
        cast(asyncio.Transport, client.writer.transport).pause_reading()
        client.writer.write(GET)
        await full.wait()
        client.writer.write_eof()
        await left.wait()
        client.writer.transport.abort()


async def test_who_leaves_does_not_disturb_what_ends_his_request(tmp_path: Path) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> Response:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):  # the end of what it sends, the loss of the connection, and whatever is told of it
                await asyncio.sleep(0)
            ended.set()
        return Response()

    async with client_of(tmp_path, handler) as client:
        client.writer.write(GET)
        await begun.wait()
        client.writer.close()
        await ended.wait()


@pytest.mark.parametrize("ends", [False, True])
async def test_an_error_after_the_head_is_no_second_answer(tmp_path: Path, ends: bool) -> None:
    async def handler(request: Request) -> Response:
        stream = request.begin({})
        await (stream.end(b"one") if ends else stream.write(b"one"))
        return Response(b"failed", status=500)

    async with client_of(tmp_path, handler) as client:
        client.writer.write(GET + GET)
        await client.head()
        with contextlib.suppress(ConnectionError):
            assert await client.reader.read() == b"3\r\none\r\n" + (b"0\r\n\r\n" if ends else b"")


class Place(bytearray):
    """Where a body goes."""


async def test_what_a_client_has_sent_goes_with_it(tmp_path: Path) -> None:
    """Without a search for rings of objects: they may hold as much as bodies are large."""
    places: list[weakref.ref[Place]] = []
    begun = asyncio.Event()

    async def handler(request: Request) -> Response:
        place = Place(1 << 20)
        places.append(weakref.ref(place))
        begun.set()
        have = b"".join(request.body.take())
        place[: len(have)] = have
        if request.body.length is not None:
            request.body.into(memoryview(place)[len(have) :])
        with contextlib.suppress(RequestError):
            while not request.body.complete:
                await request.body.wait()
                request.body.take_landed()
                request.body.take()
        return Response()

    for rest in (b"Content-Length: 1048576\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz"):
        begun.clear()
        gc.collect()
        gc.disable()
        try:
            async with client_of(tmp_path, handler) as client:
                client.writer.write(b"POST / HTTP/1.1\r\n" + rest)
                await begun.wait()
                client.writer.write(b"abc\r\n")
                await client.writer.drain()
                for _ in range(10):
                    await asyncio.sleep(0)
            names = ("engine.http.connection", "engine.http.incoming", "engine.http.message", "httptools.parser.parser")
            assert not [each for each in gc.get_objects() if type(each).__module__ in names]
            assert places.pop()() is None
        finally:
            gc.enable()
