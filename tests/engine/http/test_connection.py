"""A connection over a real socket: raw bytes out, raw bytes back."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from engine.http.incoming import BEHIND_BYTES
from engine.http.message import Request, Response
from engine.http.stream import Stream
from tests.engine.http.raw_client import GET, client_of, echo


async def test_requests_on_one_connection_are_answered_one_after_the_other(tmp_path: Path) -> None:
    async with client_of(tmp_path, echo) as client:
        for _ in range(3):
            client.writer.write(GET)
            assert await client.answer() == (200, b"GET /a {'x': '1'} ")
        post = b"POST /b HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
        client.writer.write(post + GET + post)  # in one write
        assert [(await client.answer())[1][:6] for _ in range(3)] == [b"POST /", b"GET /a", b"POST /"]


async def test_many_requests_in_one_write_wait_for_their_turn(tmp_path: Path) -> None:
    async with client_of(tmp_path, echo) as client:
        for _ in range(3):
            client.writer.write(GET * 500)
            for _ in range(500):
                assert (await client.answer())[0] == 200


@pytest.mark.parametrize("size", [0, 1, 70_000, 1 << 20])
async def test_a_body_comes_whole_in_whatever_pieces(tmp_path: Path, size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    async with client_of(tmp_path, echo) as client:
        client.writer.write(b"POST /b HTTP/1.1\r\nContent-Le")
        await asyncio.sleep(0)
        client.writer.write(b"ngth: %d\r\n\r\n" % size + body[: size // 2])
        await client.writer.drain()
        client.writer.write(body[size // 2 :])
        assert await client.answer() == (200, b"POST /b {} " + body)
        client.writer.write(b"POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, size, 50_000):
            piece = body[at : at + 50_000]
            client.writer.write(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
        client.writer.write(b"0\r\nTrailer: x\r\n\r\n" + GET)
        assert await client.answer() == (200, b"POST /b {} " + body)
        assert (await client.answer())[0] == 200


@pytest.mark.parametrize("num_early", [0, 1, 100_000])
async def test_what_is_missing_of_a_body_is_read_into_its_place(tmp_path: Path, num_early: int) -> None:
    body = bytes(range(256)) * 4000
    landed: list[int] = []

    async def handler(request: Request) -> Response:
        assert request.body.length is not None
        have = b"".join(request.body.take())
        whole = bytearray(request.body.length)
        whole[: len(have)] = have
        if not request.body.complete:
            request.body.into(memoryview(whole)[len(have) :])
        landed.append(len(have))
        while not request.body.complete:
            await request.body.wait()
            landed.append(request.body.take_landed())
        landed.append(request.body.take_landed())
        return Response(bytes(whole))

    async with client_of(tmp_path, handler) as client:
        for _ in range(2):  # then with the parser that takes over
            landed.clear()
            client.writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:num_early])
            await client.writer.drain()
            client.writer.write(body[num_early:] + b"GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
            assert await client.answer() == (200, body)
            assert sum(landed[:-1]) == len(body)
            assert await client.answer() == (200, b"")


async def test_headers_are_joined_and_their_names_are_in_lower_case(tmp_path: Path) -> None:
    async def handler(request: Request) -> Response:
        return Response(repr((request.headers, request.content_type)).encode())

    async with client_of(tmp_path, handler) as client:
        client.writer.write(
            b"GET / HTTP/1.1\r\nX-Caf\xc3\xa9: 1\r\nx-b: one\r\nX-B: two\r\ncontent-type: Text/X; a=b\r\n\r\n"
        )
        wanted = ({"x-café": "1", "x-b": "one, two", "content-type": "Text/X; a=b"}, "text/x")
        status, body = await client.answer()
        if status == 200:
            assert body == repr(wanted).encode()
        else:  # a parser may refuse names that are no tokens (RFC 9110 5.1)
            assert status == 400


@pytest.mark.parametrize(
    ("version", "field", "again", "said"),
    [
        (b"1.1", b"", True, None),
        (b"1.1", b"Connection: close\r\n", False, "close"),
        (b"1.0", b"", False, "close"),
        (b"1.0", b"Connection: keep-alive\r\n", True, "keep-alive"),
    ],
)
async def test_the_connection_lives_as_both_sides_said(
    tmp_path: Path, version: bytes, field: bytes, again: bool, said: str | None
) -> None:
    request = b"GET / HTTP/%b\r\n%b\r\n" % (version, field)
    async with client_of(tmp_path, echo) as client:
        client.writer.write(request)
        line, headers = await client.head()
        assert line == b"HTTP/1.1 200 OK"
        assert headers.get("connection") == said
        assert headers["date"].endswith(" GMT")
        assert "server" not in headers
        await client.reader.readexactly(int(headers["content-length"]))
        if again:
            client.writer.write(request)
            assert (await client.head())[0] == line
        else:
            assert await client.reader.read() == b""


async def test_an_answer_to_head_has_no_body(tmp_path: Path) -> None:
    async with client_of(tmp_path, echo) as client:
        client.writer.write(b"HEAD /a HTTP/1.1\r\n\r\n" + GET)
        assert (await client.head())[1]["content-length"] == "11"
        assert (await client.answer())[0] == 200


async def test_who_asks_first_is_told_to_go_on_when_its_body_is_wanted(tmp_path: Path) -> None:
    ask = b"POST /b HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    async with client_of(tmp_path, echo) as client:
        client.writer.write(ask)
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(b"abc")
        assert await client.answer() == (200, b"POST /b {} abc")

    async def refuse(request: Request) -> Response:
        return Response(b"no", status=413)

    async with client_of(tmp_path, refuse) as client:
        client.writer.write(ask)
        line, headers = await client.head()
        assert line == b"HTTP/1.1 413 Request Entity Too Large"  # and no 100 before it
        assert headers["connection"] == "close"
        assert await client.reader.read() == b"no"


async def test_a_body_that_nobody_takes_is_not_kept_and_its_sender_has_the_answer(tmp_path: Path) -> None:
    begun, may_answer = asyncio.Event(), asyncio.Event()
    seen: list[Request] = []

    async def handler(request: Request) -> Response:
        seen.append(request)
        begun.set()
        await may_answer.wait()
        return Response(b"no", status=404)

    async with client_of(tmp_path, handler) as client:
        client.writer.write(b"POST /b HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")
        await begun.wait()
        for _ in range(64):
            client.writer.write(bytes(1 << 18))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.writer.drain(), 0.02)
        assert sum(map(len, seen[0].body._pieces)) <= BEHIND_BYTES + (1 << 18)
        may_answer.set()
        assert await client.answer() == (404, b"no")
        assert await client.reader.read() == b""


async def test_who_leaves_ends_what_was_done_for_him(tmp_path: Path) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> Response:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return Response()

    async with client_of(tmp_path, handler) as client:
        client.writer.write(GET)
        await begun.wait()
        client.writer.close()
        await ended.wait()


BROKEN = {
    "no HTTP": b"hello\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\nX : 1\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length and chunks": b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no number": b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    "too many headers": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1001 + b"\r\n",
    "a head without end": b"GET / HTTP/1.1\r\nX: " + b"x" * (2 << 20),
}


@pytest.mark.parametrize("request_", BROKEN.values(), ids=BROKEN.keys())
async def test_what_cannot_be_read_is_a_400_and_the_end(tmp_path: Path, request_: bytes) -> None:
    async with client_of(tmp_path, echo) as client:
        client.writer.write(request_)
        with contextlib.suppress(ConnectionError):  # closed before all of it was sent
            status, _ = await client.answer()
            assert status == 400
            await client.reader.read()


async def test_what_is_broken_behind_a_request_does_not_get_into_its_answer(tmp_path: Path) -> None:
    async with client_of(tmp_path, echo) as client:
        client.writer.write(GET + b"nonsense\r\n\r\n")
        assert await client.answer() == (200, b"GET /a {'x': '1'} ")
        assert await client.reader.read() == b""


async def test_a_body_that_breaks_off_is_an_error_of_its_request(tmp_path: Path) -> None:
    async with client_of(tmp_path, echo) as client:
        client.writer.write(b"POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await client.writer.drain()
        client.writer.write(b"zz\r\n")
        status, message = await client.answer()
        assert status == 400
        assert message.startswith(b"the body cannot be read")
        assert await client.reader.read() == b""


async def test_another_protocol_is_not_spoken(tmp_path: Path) -> None:
    async with client_of(tmp_path, echo) as client:
        client.writer.write(b"GET /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nPRI * HTTP/2.0\r\n\r\n")
        assert (await client.answer())[0] == 200
        assert await client.reader.read() == b""


async def test_a_header_cannot_be_two(tmp_path: Path) -> None:
    async def handler(request: Request) -> Response:
        return Response(headers={"x": "a\r\nSet-Cookie: b"})

    async with client_of(tmp_path, handler) as client:
        client.writer.write(GET)
        with contextlib.suppress(ConnectionError):
            assert await client.reader.read() == b""


@pytest.mark.parametrize(
    ("version", "wanted"), [(b"1.1", b"3\r\none\r\n5\r\ntwo!!\r\n0\r\n\r\n"), (b"1.0", b"onetwo!!")]
)
async def test_a_stream_is_framed_as_its_reader_knows(tmp_path: Path, version: bytes, wanted: bytes) -> None:
    async def handler(request: Request) -> Stream:
        stream = request.begin({"Content-Type": "text/event-stream"})
        await stream.write(b"one")
        await stream.end(b"two!!")
        return stream

    async with client_of(tmp_path, handler) as client:
        client.writer.write(b"GET / HTTP/%b\r\n\r\n" % version)
        _, headers = await client.head()
        assert headers["content-type"] == "text/event-stream"
        assert await client.reader.readexactly(len(wanted)) == wanted
        if version == b"1.0":
            assert await client.reader.read() == b""
        else:
            client.writer.write(b"HEAD / HTTP/1.1\r\n\r\n" + GET)
            assert (await client.head())[1]["transfer-encoding"] == "chunked"
            assert (await client.head())[0] == b"HTTP/1.1 200 OK"  # nothing of a body before it


async def test_a_stream_that_breaks_off_has_no_end(tmp_path: Path) -> None:
    async def handler(request: Request) -> Stream:
        stream = request.begin({})
        await stream.write(b"one")
        return stream

    async with client_of(tmp_path, handler) as client:
        client.writer.write(GET)
        await client.head()
        with contextlib.suppress(ConnectionError):
            assert await client.reader.read() == b"3\r\none\r\n"


async def test_a_stream_waits_for_a_slow_reader(tmp_path: Path) -> None:
    sent, left = 0, asyncio.Event()

    async def handler(request: Request) -> Stream:
        nonlocal sent
        stream = request.begin({})
        try:
            while True:
                await stream.write(bytes(1 << 16))
                sent += 1 << 16
        finally:
            left.set()
        return stream

    async with client_of(tmp_path, handler) as client:
        client.writer.write(GET)
        await client.head()
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.05)
        assert sent <= 48 << 20  # the reader's own buffer is 16 MiB and as much again
        client.writer.transport.abort()
        await left.wait()
