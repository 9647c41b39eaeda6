"""Clients that read slowly or leave: bounded memory, and an upstream that stops working for nobody."""

from __future__ import annotations

import asyncio
import time

import pytest

from proxy.downstream import READ_BYTES as CLIENT_READ_BYTES
from proxy.downstream import WRITE_HIGH_BYTES, ClientConnection
from proxy.outbox import HELD_BYTES
from proxy.upstream.transport import LARGE_READ_BYTES, READ_BYTES
from tests.wire.harness import OK, UpstreamSide, answering, app, edge, eventually, raw_upstream, reached

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def pouring(head: bytes, chunk_bytes: int = 65536) -> tuple[object, list[int]]:
    """A script that sends a body as fast as it is taken, for ever; and the count of bytes taken so far."""
    sent = [0]

    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(head)
        piece = b"%x\r\n%b\r\n" % (chunk_bytes, b"x" * chunk_bytes) * (1 + 262144 // chunk_bytes)
        while not side._upstream.broken.is_set():
            await side.send(piece)
            sent[0] += len(piece)
        side._upstream.left.set()

    return script, sent


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def stalled(sent: list[int]) -> None:
    """Wait until the upstream gets rid of no more bytes, in turns of the loop: on a busy box time passes without it."""
    before, num_same = -1, 0
    async with asyncio.timeout(60):
        while num_same < 25:
            num_same = num_same + 1 if sent[0] == before > 0 else 0
            before = sent[0]
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("chunk_bytes", [100, 1000, 10000, 65536])
async def test_D04_a_client_that_does_not_read_stops_the_upstream(chunk_bytes: int) -> None:
    script, sent = pouring(STREAM, chunk_bytes)
    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        clients = [await running.connect(receive_buffer_bytes=4096) for _ in range(5)]
        for client in clients:
            await client.send(GET)
        await stalled(sent)
        waiting = [c.transport.get_write_buffer_size() for c in running.worker._open() if c.transport is not None]
        assert len(waiting) == 5
        # The high-water mark and what one read brought, which was framed anew: a few bytes for each chunk.
        most = WRITE_HIGH_BYTES + READ_BYTES + HELD_BYTES
        assert all(0 < size <= most for size in waiting), max(waiting)


async def test_D04_a_client_that_stops_after_megabytes_has_no_more_waiting() -> None:
    script, sent = pouring(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n")
    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        await client.exactly(8 << 20)  # in large reads
        await stalled(sent)
        (connection,) = running.worker._open()
        assert connection.transport is not None
        most = max(LARGE_READ_BYTES, WRITE_HIGH_BYTES + READ_BYTES)
        assert 0 < connection.transport.get_write_buffer_size() <= most
        (relay,) = running.worker._relays
        assert len(relay.connection.get_buffer(-1)) == READ_BYTES


async def test_D04_more_of_an_answer_is_read_at_once_while_its_client_takes_all() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nbeginning")
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        await client.until(b"beginning")
        (relay,) = running.worker._relays
        assert len(relay.connection.get_buffer(-1)) == LARGE_READ_BYTES
        client.close()
        await reached(upstream.left)


async def test_D04_an_upstream_that_stops_after_megabytes_of_an_upload_has_no_more_waiting() -> None:
    received = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.head()
        num_bytes = 0
        while num_bytes < 8 << 20:
            num_bytes += len(await side.receive())
        received.set()
        await side._upstream.broken.wait()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000000\r\n\r\n")
        sent = [0]

        async def pour() -> None:
            while True:
                await client.send(b"x" * 262144)
                sent[0] += 262144

        pouring_in = asyncio.create_task(pour())
        await reached(received)
        await stalled(sent)
        (connection,) = running.worker._open()
        (relay,) = running.worker._relays
        assert relay.connection.transport is not None
        before_it = connection._body.received_bytes - relay._x.bytes_in
        assert before_it + relay.connection.transport.get_write_buffer_size() <= 3 * CLIENT_READ_BYTES
        pouring_in.cancel()
        await asyncio.wait((pouring_in,))


async def test_D04_a_client_that_never_reads_is_cut_off() -> None:
    script, _ = pouring(STREAM)
    async with (
        raw_upstream(script) as upstream,
        edge({**app(upstream.port), "listener": {"limits": {"send_idle": "200ms"}}}) as running,
    ):
        client = await running.connect(receive_buffer_bytes=4096)
        await client.send(GET)
        await reached(upstream.left)
        await eventually(lambda: not running.worker._relays)


async def test_D04_a_slow_client_gets_everything_once_it_reads() -> None:
    body = bytes(i % 251 for i in range(5_000_000))

    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        await side.send(body)
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect(receive_buffer_bytes=4096)
        await client.send(GET)
        await eventually(lambda: any(relay.connection.reading_paused for relay in running.worker._relays))
        assert (await client.answer()).body == body


async def test_D04_a_client_that_pipelines_and_does_not_read_gets_no_more_answers() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n" + b"x" * 50000
    async with raw_upstream(answering(answer)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect(receive_buffer_bytes=4096)
        await client.send(GET * 500)
        await eventually(lambda: any(connection.writing_paused for connection in running.worker._open()))
        (connection,) = running.worker._open()
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() <= 2 * 65536
        assert len(upstream.heads) < 500
        for _ in range(500):
            assert len((await client.answer()).body) == 50000


async def test_D05_a_client_that_leaves_under_back_pressure_frees_the_upstream() -> None:
    script, sent = pouring(STREAM)
    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect(receive_buffer_bytes=4096)
        await client.send(GET)
        await stalled(sent)
        client.reset()
        await reached(upstream.left)
        await eventually(lambda: not running.worker._open() and not running.worker._relays)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello", STREAM])
async def test_D07_a_client_that_leaves_cancels_the_upstream(begin: bytes, reset: bool) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(begin)
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        await eventually(lambda: len(upstream.heads) == 1)
        if begin:
            await client.until(b"\r\n\r\n")
        left_at = time.monotonic()
        client.reset() if reset else client.close()
        await reached(upstream.left)
        # The bound of the design is 100 ms; the rest is for a busy machine.
        assert time.monotonic() - left_at < 2.0
        await eventually(lambda: not running.worker._relays and not running.worker._open())
        assert running.worker._snapshot is not None
        assert running.worker._snapshot.upstreams["app"].states[0].in_flight == 0


async def test_D07_a_client_that_leaves_while_the_upstream_is_being_connected_is_forgotten() -> None:
    # A listening socket whose queue is full takes a connection only much later.
    import socket

    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(full.getsockname())
        fillers.append(filler)
    try:
        async with edge(app(full.getsockname()[1])) as running:
            client = await running.connect()
            await client.send(GET)
            await eventually(lambda: running.worker._snapshot.upstreams["app"].states[0].in_flight == 1)
            client.close()
            await eventually(lambda: running.worker._snapshot.upstreams["app"].states[0].in_flight == 0)
            await eventually(lambda: not running.worker._open())
    finally:
        for sock in (full, *fillers):
            sock.close()


class UnwrittenTransport(asyncio.Transport):
    """A connection on which nothing is sent."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_D07_a_client_that_leaves_before_its_request_is_begun_gives_its_place_back(turns: int) -> None:
    async with raw_upstream(answering(OK)) as upstream:
        route = {"to": "app", "policies": {"in_flight": {"max": 1}}}
        async with edge({**app(upstream.port), "routes": [route]}) as running:
            (listening,) = running.worker._listening.values()
            lost = ClientConnection(listening.edge)
            lost.connection_made(UnwrittenTransport())
            lost.data_received(GET)
            for _ in range(turns):
                await asyncio.sleep(0)
            lost.connection_lost(None)
            await eventually(lambda: not listening.edge.open)
            assert (await running.ask(GET)).status == 200


async def test_a_client_that_left_says_nothing_about_the_upstream() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.gone()

    breaker = {"min_requests": 1, "failures": "1%"}
    async with raw_upstream(script) as upstream, edge(app(upstream.port, breaker=breaker)) as running:
        for number in range(1, 4):
            client = await running.connect()
            await client.send(GET)
            await eventually(lambda number=number: len(upstream.heads) == number)
            client.close()
            await eventually(lambda: not running.worker._relays)
        assert running.worker.statistics()["upstreams"]["app"]["breaker"] == "closed"


async def test_half_a_head_is_a_408_and_silence_is_closed() -> None:
    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            await side.send(OK)

    limits = {"limits": {"head": "100ms", "keep_alive": "100ms"}}
    async with raw_upstream(script) as upstream, edge({**app(upstream.port), "listener": limits}) as running:
        half = await running.connect()
        await half.send(b"GET / HTTP/1.1\r\nHo")
        answer = await half.answer()
        assert answer.status == 408
        assert b"0.1 s" in answer.body
        silent = await running.connect()
        assert await silent.rest() == (b"", "fin")
        idle = await running.connect()
        await idle.send(GET)
        assert (await idle.answer()).status == 200
        assert await idle.rest() == (b"", "fin")


@pytest.mark.parametrize("chunked", [False, True])
async def test_D05_a_client_that_leaves_while_its_upload_waits_frees_the_upstream(chunked: bool) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.head()
        await go.wait()
        await side.gone()

    go = asyncio.Event()
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 100000000"
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n" if chunked else b"x" * 65536
    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n")

        async def pour() -> None:
            while True:
                await client.send(piece)

        pouring = asyncio.get_running_loop().create_task(pour())
        await eventually(lambda: any(relay.connection.writing_paused for relay in running.worker._relays))
        (connection,) = running.worker._open()
        await eventually(lambda: connection._body_paused)
        pouring.cancel()
        client.reset()
        await eventually(lambda: not running.worker._relays and not running.worker._open())
        go.set()
        await reached(upstream.left)


async def test_D07_a_client_that_leaves_with_its_last_bytes_is_no_fault_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.head()
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        (listening,) = running.worker._listening.values()
        lost = ClientConnection(listening.edge)
        lost.connection_made(UnwrittenTransport())
        lost.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        await eventually(lambda: upstream.received.endswith(b"abc"))
        lost.data_received(b"d")  # which wakes who sends it on
        lost.connection_lost(None)
        await reached(upstream.left)
        await eventually(lambda: not running.worker._relays)
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
