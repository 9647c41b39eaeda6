"""Comments put into streams of events that are quiet: when, where, and where never."""

from __future__ import annotations

import asyncio

import pytest

from tests.wire.event_streams import EVENTS, GET, HEAD, pinged, told
from tests.wire.harness import Edge, UpstreamSide, app, edge, eventually, raw_upstream

PING = b": ping\n\n"


async def sweeps(running: Edge, number: int = 5) -> None:
    """Wait until the worker has looked at its connections so many times more."""
    seen: set[float] = set()
    await eventually(lambda: seen.add(running.worker._sweep_due) or len(seen) > number)


async def test_E07_a_quiet_stream_gets_comments_from_its_beginning_on() -> None:
    queue = asyncio.Queue[bytes]()
    async with raw_upstream(told(queue)) as upstream, edge(pinged(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        await client.until(b"\r\n\r\n")  # before any event
        for number in range(3):
            for _ in range(3):
                assert await client.until(PING + b"\r\n") == b"8\r\n" + PING + b"\r\n"
            queue.put_nowait(b"data: %d\n\n" % number)
            rest = await client.until(b"data: %d\n\n\r\n" % number)
            assert rest.replace(b"8\r\n" + PING + b"\r\n", b"") == b"9\r\ndata: %d\n\n\r\n" % number
        queue.put_nowait(b"")
        assert (await client.until(b"0\r\n\r\n")).replace(b"8\r\n" + PING + b"\r\n", b"") == b"0\r\n\r\n"
        queue.put_nowait(b"")
        await client.send(GET)  # the connection goes on
        assert (await client.answer()).body.replace(PING, b"") == b""
        assert upstream.num_connections == 1


@pytest.mark.parametrize("quiet", [b"data: {", b"data: 1\n", b"data: 1\r\n", b"data: 1\r\n\r", b"id: 1\rdata: 2\r"])
async def test_E07_no_comment_inside_an_event(quiet: bytes) -> None:
    queue = asyncio.Queue[bytes]()
    async with raw_upstream(told(queue)) as upstream, edge(pinged(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        queue.put_nowait(quiet)
        await client.until(quiet + b"\r\n")
        await sweeps(running)
        queue.put_nowait(b"\n\r\n")
        assert await client.until(b"\n\r\n\r\n") == b"3\r\n\n\r\n\r\n"
        assert await client.until(PING + b"\r\n") == b"8\r\n" + PING + b"\r\n"


@pytest.mark.parametrize("end", [b"\n\n", b"\r\r", b"\r\n\r\n", b"\n\r\n", b"\r\r\n", b"\r\n\n"])
async def test_E05_E07_an_event_may_end_in_any_two_line_ends(end: bytes) -> None:
    queue = asyncio.Queue[bytes]()
    async with raw_upstream(told(queue)) as upstream, edge(pinged(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        queue.put_nowait(b"data: 1")
        for at in range(len(end)):
            queue.put_nowait(end[at : at + 1])
        await client.until(b"data: 1\r\n")
        await client.until(PING)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
async def test_E07_E11_no_comment_behind_done(end: bytes) -> None:
    queue = asyncio.Queue[bytes]()
    async with raw_upstream(told(queue)) as upstream, edge(pinged(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        done = b"data: [DONE]" + end
        queue.put_nowait(done)
        await client.until(done + b"\r\n")
        await sweeps(running)
        queue.put_nowait(b"")
        assert await client.until(b"\r\n\r\n") == b"0\r\n\r\n"


NOT_PINGED = {
    "compressed": EVENTS + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
    "another type": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    "no type": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
}


@pytest.mark.parametrize("head", NOT_PINGED.values(), ids=NOT_PINGED)
async def test_E02_E07_no_comment_into_what_is_no_stream_of_events_in_the_clear(head: bytes) -> None:
    queue = asyncio.Queue[bytes]()
    async with raw_upstream(told(queue, head)) as upstream, edge(pinged(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        await client.until(b"\r\n\r\n")
        await sweeps(running)
        queue.put_nowait(b"x\n\n")
        assert await client.until(b"\n\n\r\n") == b"3\r\nx\n\n\r\n"
        await sweeps(running)
        queue.put_nowait(b"")
        assert await client.until(b"\r\n\r\n") == b"0\r\n\r\n"


async def test_E07_no_comment_into_an_answer_with_a_length() -> None:
    go = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(EVENTS + b"Content-Length: 18\r\n\r\ndata: 1\n\n")
        await go.wait()
        await side.send(b"data: 2\n\n")
        await side.gone()

    async with raw_upstream(script) as upstream, edge(pinged(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        await client.until(b"data: 1\n\n")
        await sweeps(running)
        go.set()
        assert await client.until(b"data: 2\n\n") == b"data: 2\n\n"


@pytest.mark.parametrize("head_only", [b"HEAD", b"GET"])
async def test_E07_an_old_client_gets_comments_without_chunks_and_a_head_request_none(head_only: bytes) -> None:
    queue = asyncio.Queue[bytes]()
    async with raw_upstream(told(queue)) as upstream, edge(pinged(upstream.port)) as running:
        client = await running.connect()
        await client.send(head_only + b" / HTTP/1.0\r\nHost: x\r\n\r\n")
        head = await client.until(b"\r\n\r\n")
        assert b"Transfer-Encoding" not in head
        if head_only == b"HEAD":
            assert (await client.rest())[0] == b""
        else:
            assert await client.until(PING * 3) == PING * 3
            queue.put_nowait(b"")
            rest, ending = await client.rest()
            assert (rest.replace(PING, b""), ending) == (b"", "fin")


async def test_E07_E08_our_comments_do_not_keep_a_silent_upstream_alive() -> None:
    queue = asyncio.Queue[bytes]()
    async with (
        raw_upstream(told(queue)) as upstream,
        edge(pinged(upstream.port, timeouts={"idle": "200ms"})) as running,
    ):
        client = await running.connect()
        await client.send(GET)
        rest, ending = await client.rest()
        assert rest.count(PING) > 1
        assert ending == "rst"
        assert not rest.endswith(b"0\r\n\r\n")


async def test_E07_a_client_that_takes_nothing_gets_no_comments_either() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(HEAD)
        event = b"data: " + b"x" * 65000 + b"\n\n"
        while not side._upstream.broken.is_set():
            await side.send(b"%x\r\n%b\r\n" % (len(event), event))

    async with raw_upstream(script) as upstream, edge(pinged(upstream.port)) as running:
        client = await running.connect(receive_buffer_bytes=4096)
        await client.send(GET)
        await eventually(lambda: any(relay.connection.reading_paused for relay in running.worker._relays))
        (connection,) = running.worker._open()
        assert connection.transport is not None
        await sweeps(running)
        waiting = connection.transport.get_write_buffer_size()
        await sweeps(running)
        assert connection.transport.get_write_buffer_size() <= waiting


async def test_E07_the_comments_of_an_upstream_pass() -> None:
    text = b":\n\n: ping\n\n:no space\r\n\r\ndata: 1\n\n\xef\xbb\xbfunknown: 1\ndata\n\n"
    queue = asyncio.Queue[bytes]()
    queue.put_nowait(text)
    queue.put_nowait(b"")
    async with raw_upstream(told(queue)) as upstream, edge(app(upstream.port)) as running:
        assert (await running.ask(GET)).body == text
