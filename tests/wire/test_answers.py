"""Answers that arrive whole: framing is made anew, whatever the upstream's was."""

from __future__ import annotations

import pytest

from tests.wire.harness import OK, UpstreamSide, answering, app, edge, eventually, raw_upstream

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"


async def ask_twice(answer: bytes, request: bytes, *, head_request: bool = False) -> tuple[list[bytes], int]:
    """(raw answers to the same request sent twice on one connection, number of upstream connections used)."""
    async with raw_upstream(answering(answer)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        raws = []
        for _ in range(2):
            await client.send(request)
            raws.append((await client.answer(head_request=head_request)).raw)
        return raws, upstream.num_connections


async def test_C01_head_keeps_its_length_and_has_no_body() -> None:
    raws, connections = await ask_twice(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", HEAD, head_request=True)
    assert all(b"Content-Length: 1234\r\n" in raw for raw in raws)
    assert connections == 1


async def test_C01_head_of_a_chunked_answer_ends_at_the_blank_line() -> None:
    raws, _ = await ask_twice(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", HEAD, head_request=True)
    # What follows the head, not the bytes at its end: an id in its last field may end in 0.
    assert all(raw.partition(b"\r\n\r\n")[1:] == (b"\r\n\r\n", b"") for raw in raws)


@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked\r\n", b"Content-Length: 10\r\n", b""])
async def test_C01_not_modified_ends_at_the_blank_line(framing: bytes) -> None:
    raws, _ = await ask_twice(b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\n' + framing + b"\r\n", GET)
    assert all(raw.endswith(b"\r\n\r\n") and b'ETag: "a"' in raw for raw in raws)
    assert b"Transfer-Encoding" not in raws[0]


async def test_C01_junk_after_no_content_never_reaches_anybody() -> None:
    raws, connections = await ask_twice(b"HTTP/1.1 204 No Content\r\n\r\njunk", GET)
    assert all(raw.startswith(b"HTTP/1.1 204") and raw.endswith(b"\r\n\r\n") for raw in raws)
    assert b"Content-Length" not in raws[0]
    assert connections == 2


async def test_C02_interim_answers_are_dropped() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
    raws, connections = await ask_twice(early + OK, GET)
    assert all(raw.startswith(b"HTTP/1.1 200") and raw.endswith(b"ok") and b"Link" not in raw for raw in raws)
    assert connections == 1


async def test_C02_an_interim_answer_in_a_segment_of_its_own_is_not_the_answer() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await side.send(OK)
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        assert (await running.ask(GET)).body == b"ok"


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 5\r\nContent-Length: 50\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 5\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Content-Length : 5\r\n",
        b"Content-Length: 5\r\nX-A: a\x00b\r\n",
        b"Content-Length: 5\r\nX-A: a\rb\r\n",
        b"Upgrade: h2c\r\nConnection: upgrade, close\r\nContent-Length: x\r\n",
    ],
)
async def test_C07_A07_an_answer_that_contradicts_itself_is_a_bad_gateway(framing: bytes) -> None:
    upstream_answer = b"HTTP/1.1 200 OK\r\n" + framing + b"\r\nhello"
    async with raw_upstream(answering(upstream_answer)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        for _ in range(2):
            await client.send(GET)
            answer = await client.answer()
            assert answer.status == 502
            assert b"X-A" not in answer.raw
        assert upstream.num_connections == 2


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b"ICY 200 OK\r\n\r\n"]
)
async def test_an_answer_in_another_protocol_is_a_bad_gateway(answer: bytes) -> None:
    async with raw_upstream(answering(answer)) as upstream, edge(app(upstream.port)) as running:
        assert (await running.ask(GET)).status == 502


async def test_C07_bytes_after_an_answer_end_the_connection_and_go_to_nobody() -> None:
    raws, connections = await ask_twice(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", GET)
    assert all(raw.endswith(b"\r\n\r\nok") for raw in raws)
    assert connections == 2


async def test_C07_bytes_on_an_idle_connection_go_to_nobody() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(OK)
        await side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        assert (await client.answer()).body == b"ok"
        await eventually(lambda: upstream.left.is_set())
        await client.send(GET)
        assert (await client.answer()).body == b"ok"


async def test_C07_a_status_line_without_a_reason_is_written_with_one() -> None:
    async with (
        raw_upstream(answering(b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n")) as upstream,
        edge(app(upstream.port)) as running,
    ):
        assert (await running.ask(GET)).raw.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_B04_trailers_stay_trailers() -> None:
    trailers = b"X-Checksum: abc\r\nSet-Cookie: a=b\r\n"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + trailers + b"\r\n"
    async with raw_upstream(answering(chunked)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        head = await client.until(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head
        assert b"X-Checksum" not in head
        assert await client.until(b"abc\r\n\r\n") == b"2\r\nok\r\n0\r\nX-Checksum: abc\r\n\r\n"


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\n\r\n"


async def test_A05_chunk_extensions_are_not_passed_on() -> None:
    async with raw_upstream(answering(CHUNKED)) as upstream, edge(app(upstream.port)) as running:
        answer = await running.ask(GET)
        assert answer.body == b"ok"
        assert b"x=y" not in answer.raw


@pytest.mark.parametrize("connection", [b"", b"Connection: keep-alive\r\n"])
async def test_B13_an_old_client_gets_no_chunks(connection: bytes) -> None:
    async with raw_upstream(answering(CHUNKED)) as upstream, edge(app(upstream.port)) as running:
        answer = await running.ask(b"GET / HTTP/1.0\r\nHost: x\r\n" + connection + b"\r\n")
        assert (answer.body, answer.ending) == (b"ok", "fin")
        assert answer.get("transfer-encoding") is None
        assert answer.get("connection") == "close"


async def test_B13_an_old_client_may_keep_a_connection_when_a_length_is_known() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        for _ in range(2):
            await client.send(b"GET / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n")
            answer = await client.answer()
            assert answer.get("connection") == "keep-alive"
        await client.send(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
        assert (await client.answer()).get("connection") == "close"
        assert await client.rest() == (b"", "fin")


async def test_B08_an_encoded_body_passes_untouched() -> None:
    body = bytes(range(256)) * 1000
    encoded = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with raw_upstream(answering(encoded)) as upstream, edge(app(upstream.port)) as running:
        answer = await running.ask(GET)
        assert answer.body == body
        assert answer.get("content-encoding") == "gzip"
        head = upstream.heads[0].lower()
        assert b"accept" not in head
        assert b"user-agent" not in head


async def test_B07_cookies_pass_line_by_line_and_belong_to_nobody_else() -> None:
    cookies = b"HTTP/1.1 200 OK\r\nSet-Cookie: s=A\r\nSet-Cookie: t=B\r\nSet-Cookie: u=C\r\nContent-Length: 0\r\n\r\n"
    async with raw_upstream(answering(cookies)) as upstream:
        config = app(upstream.port)
        config["upstreams"]["app"]["servers"] = [f"http://localhost:{upstream.port}"]
        async with edge(config) as running:
            first = await running.ask(b"GET /login HTTP/1.1\r\nHost: x\r\n\r\n")
            assert [value for name, value in first.fields if name == "Set-Cookie"] == ["s=A", "t=B", "u=C"]
            await running.ask(b"GET /me HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"cookie" not in upstream.heads[1].lower()


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 65536, 1_000_003])
async def test_a_body_of_any_size_arrives_whole_however_it_is_framed(size: int) -> None:
    body = bytes(i % 251 for i in range(size))
    length = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (size, body)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (body[i : i + 9999] for i in range(0, size, 9999)))
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    for answer in (length, chunked):
        async with raw_upstream(answering(answer)) as upstream, edge(app(upstream.port)) as running:
            assert (await running.ask(GET)).body == body


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def script(side: UpstreamSide) -> None:
        while (await side.head()) is not None:
            target = side._upstream.heads[-1].split(b" ")[1]
            await side.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(target), target))

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % i for i in range(100)))
        for i in range(100):
            assert (await client.answer()).body == b"/%d" % i


async def test_C02_an_old_client_gets_no_interim_answer() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    async with raw_upstream(answering(interim + OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.0\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nhi")
        raw, _ = await client.rest()
        assert raw.count(b"HTTP/1.1") == 1
        assert raw.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_C02_interim_answers_without_end_are_a_bad_gateway() -> None:
    endless = b"HTTP/1.1 102 Processing\r\n\r\n" * 100
    async with raw_upstream(answering(endless + OK)) as upstream, edge(app(upstream.port)) as running:
        answer = await running.ask(GET)
        assert answer.status == 502
        assert b"interim" in answer.body


async def test_C02_an_interim_answer_is_no_first_byte() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(b"HTTP/1.1 102 Processing\r\n\r\n")
        await side.gone()

    timeouts = {"first_byte": "100ms", "idle": "10s"}
    async with raw_upstream(script) as upstream, edge(app(upstream.port, timeouts=timeouts)) as running:
        answer = await running.ask(GET)
        assert answer.status == 504
        assert b"no first byte within 0.1 s" in answer.body


ODD_FRAMING = {
    "a two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 50\r\n\r\nhello", 502, False),
    "b a length and chunks": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        502,
        False,
    ),
    "c the same length twice": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n", 502, False),
    "c a list of lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 0, 0\r\n\r\n", 502, False),
    "d LF alone": (b"HTTP/1.1 200 OK\nX-A: b\nContent-Length: 2\n\nok", 502, False),
    "e no reason": (b"HTTP/1.1 200\r\nX-A: b\r\nContent-Length: 2\r\n\r\nok", 200, True),
    "e a reason of bytes": (b"HTTP/1.1 200 \xff\xfe\r\nX-A: b\r\nContent-Length: 2\r\n\r\nok", 200, True),
    "f more behind": (b"HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 2\r\n\r\nokevil", 200, False),
    "f more behind chunks": (b"HTTP/1.1 200 OK\r\nX-A: b\r\n" + CHUNKED.partition(b"\r\n")[2] + b"evil", 200, False),
    "an old answer with chunks": (
        b"HTTP/1.0 200 OK\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        200,
        False,
    ),
}


@pytest.mark.parametrize(("framing", "status", "is_sound"), ODD_FRAMING.values(), ids=ODD_FRAMING)
async def test_C07_what_goes_on_is_framed_cleanly_or_not_at_all(framing: bytes, status: int, is_sound: bool) -> None:
    """Cases c and d may be refused; those that two parsers could read differently must be."""
    async with raw_upstream(answering(framing)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        for number in (1, 2):
            await client.send(GET)
            answer = await client.answer()
            assert answer.status == status
            if status == 200:
                assert answer.raw.startswith(b"HTTP/1.1 200 OK\r\nX-A: b\r\n")
                assert answer.body == b"ok"
            assert upstream.num_connections == (1 if is_sound else number)


@pytest.mark.parametrize("request_head", [GET, HEAD])
@pytest.mark.parametrize("body", [b"\x1f\x8b\xff not gzip", b""])
@pytest.mark.parametrize("coding", [b"gzip", b"br", b"zstd", b"gzip, br"])
async def test_B08_no_coding_is_undone(coding: bytes, body: bytes, request_head: bytes) -> None:
    encoded = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\nContent-Length: %d\r\nETag: W/x\r\n\r\n" % (
        coding,
        len(body),
    )
    is_head = request_head is HEAD
    raws, connections = await ask_twice(encoded + (b"" if is_head else body), request_head, head_request=is_head)
    for raw in raws:
        assert b"\r\nContent-Encoding: " + coding + b"\r\nETag: W/x\r\n" in raw
        assert b"\r\nContent-Length: %d\r\n" % len(body) in raw
        assert raw.partition(b"\r\n\r\n")[2] == (b"" if is_head else body)
    assert connections == 1


async def test_B13_an_old_clients_head_request() -> None:
    async with raw_upstream(answering(CHUNKED.partition(b"2;x")[0])) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(b"HEAD / HTTP/1.0\r\nHost: x\r\n\r\n")
        raw, ending = await client.rest()
        assert ending == "fin"
        assert raw.endswith(b"\r\n\r\n")
        assert b"Transfer-Encoding" not in raw
        assert b"Connection: close\r\n" in raw


@pytest.mark.parametrize("old", [False, True])
async def test_B04_an_old_client_gets_no_trailers(old: bool) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTrailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: last\r\n\r\n"
    async with raw_upstream(answering(chunked)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET.replace(b"1.1", b"1.0") if old else GET)
        if old:
            raw, _ = await client.rest()
            assert raw.endswith(b"\r\n\r\nok")
            assert b"last" not in raw
        else:
            assert b"X-T" not in await client.until(b"\r\n\r\n")
            assert await client.until(b"\r\n\r\n") == b"2\r\nok\r\n0\r\nX-T: last\r\n\r\n"


async def test_B07_cookies_of_one_client_go_to_no_other_although_they_share_a_connection() -> None:
    login = b"HTTP/1.1 200 OK\r\nSet-Cookie: s=A; HttpOnly\r\nContent-Length: 0\r\n\r\n"
    async with raw_upstream(answering(login)) as upstream, edge(app(upstream.port)) as running:
        for cookie in (b"", b"Cookie: s=A\r\n", b"", b"Cookie: s=B\r\n"):
            assert (await running.ask(b"GET / HTTP/1.1\r\nHost: x\r\n" + cookie + b"\r\n")).status == 200
            assert cookie in upstream.heads[-1]
            assert upstream.heads[-1].count(b"Cookie") == bool(cookie)
        assert upstream.num_connections == 1
