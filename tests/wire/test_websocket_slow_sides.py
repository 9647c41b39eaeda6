"""Tunnels with a side that does not read, or reads slowly: who is paused, and that last words arrive."""

from __future__ import annotations

import asyncio
import socket
import ssl

from tests.wire.harness import (
    Edge,
    UpstreamSide,
    edge,
    eventually,
    listen,
    raw_upstream,
    reached,
)
from tests.wire.tls import MATERIALS, PAIRS, TLS, read_head, server_context, tls_client, tls_upstream
from tests.wire.websocket import AGREE, ASK, PIECE, agreeing, chat, settled, shake


async def stands_still(count: list[int]) -> None:
    """Wait until no more bytes are taken."""
    before = -1
    while count[0] != before or not before:
        before = count[0]
        await asyncio.sleep(0.2)


def waiting_bytes(running: Edge) -> int:
    """What waits in user space on both sides of all tunnels."""
    clients = [c.transport for c in running.worker._open() if c.transport is not None]
    upstreams = [r.connection.transport for r in running.worker._relays if r.connection.transport is not None]
    return sum(transport.get_write_buffer_size() for transport in (*clients, *upstreams))


async def test_D04_a_client_that_does_not_read_pauses_the_upstream_and_gets_all_when_it_does() -> None:
    sent = [0]
    rounds = 300

    async def pour(side: UpstreamSide) -> None:
        for _ in range(rounds):
            await side.send(PIECE)
            sent[0] += len(PIECE)
        await side.gone()

    async with raw_upstream(agreeing(pour)) as upstream, edge(chat(upstream.port)) as running:
        client, _ = await shake(running, receive_buffer_bytes=4096)
        await stands_still(sent)
        assert sent[0] < rounds * len(PIECE)
        assert 0 < waiting_bytes(running) <= 3 * 65536
        for _ in range(rounds):
            assert await client.exactly(len(PIECE)) == PIECE


async def test_D04_an_upstream_that_does_not_read_pauses_the_client() -> None:
    sent = [0]

    async def deaf(side: UpstreamSide) -> None:
        await asyncio.Event().wait()

    async with raw_upstream(agreeing(deaf)) as upstream, edge(chat(upstream.port)) as running:
        client, _ = await shake(running)

        async def pour() -> None:
            while True:
                await client.send(PIECE)
                sent[0] += len(PIECE)

        pouring = asyncio.get_running_loop().create_task(pour())
        await stands_still(sent)
        assert 0 < waiting_bytes(running) <= 3 * 65536
        pouring.cancel()
        client.reset()
        await settled(running)


async def test_D04_early_bytes_do_not_wake_a_side_that_is_paused() -> None:
    sent = [0]

    async def script(side: UpstreamSide) -> None:
        await side.head()
        await side.send(AGREE + b"\r\n" + PIECE)
        while not side._upstream.broken.is_set():
            await side.send(PIECE)
            sent[0] += len(PIECE)

    async with raw_upstream(script) as upstream, edge(chat(upstream.port)) as running:
        client = await running.connect(receive_buffer_bytes=4096)
        await client.send(ASK + b"\r\n" + PIECE)
        await stands_still(sent)
        assert 0 < waiting_bytes(running) <= 4 * 65536
        client.reset()
        await settled(running)


async def test_D04_a_client_that_takes_nothing_for_too_long_is_cut_off() -> None:
    async def pour(side: UpstreamSide) -> None:
        while not side._upstream.broken.is_set():
            await side.send(PIECE)
        side._upstream.left.set()

    limits = {"limits": {"send_idle": "100ms"}}
    async with raw_upstream(agreeing(pour)) as upstream, edge({**chat(upstream.port), "listener": limits}) as running:
        await shake(running, receive_buffer_bytes=4096)
        await reached(upstream.left)
        await settled(running)


async def test_D04_a_client_that_is_slow_but_takes_something_is_not_cut_off() -> None:
    async def pour(side: UpstreamSide) -> None:
        while not side._upstream.broken.is_set():
            await side.send(PIECE)

    limits = {"limits": {"send_idle": "300ms"}}
    async with raw_upstream(agreeing(pour)) as upstream, edge({**chat(upstream.port), "listener": limits}) as running:
        client, _ = await shake(running, receive_buffer_bytes=4096)
        (connection,) = running.worker._open()
        sweeps: set[float] = set()
        while len(sweeps) < 40:  # of 20 ms each: longer than send_idle, all of it with bytes that wait
            for _ in range(16):
                assert await client.receive()
            sweeps.add(running.worker._sweep_due)
            await asyncio.sleep(0.02)
        assert connection in running.worker._open()


LAST = PIECE * 48


async def test_F02_over_tls_what_a_client_said_last_arrives_at_a_slow_upstream() -> None:
    go = asyncio.Event()

    async def slow(side: UpstreamSide) -> None:
        await go.wait()
        await side.gone()

    listening = listen()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    async with (
        raw_upstream(agreeing(slow), listening) as upstream,
        edge({**chat(upstream.port), "listener": TLS}, materials=MATERIALS) as running,
        tls_client(running) as client,
    ):
        client.writer.write(ASK.replace(b"Host: x", b"Host: a.example") + b"\r\n")
        await client.reader.readuntil(b"\r\n\r\n")
        client.writer.write(LAST)
        client.writer.close()
        await eventually(lambda: any(r.connection.transport.get_write_buffer_size() for r in running.worker._relays))
        go.set()
        await reached(upstream.left)
        assert upstream.received.removeprefix(upstream.heads[0]) == LAST
        await settled(running)


async def test_F02_a_slow_client_gets_what_the_upstream_said_last() -> None:
    async def talk(side: UpstreamSide) -> None:
        await side.send(LAST)

    async with raw_upstream(agreeing(talk)) as upstream, edge(chat(upstream.port)) as running:
        client, _ = await shake(running, receive_buffer_bytes=4096)
        got = len(client.taken())
        while got < len(LAST):
            data = await client.receive()
            assert data
            got += len(data)
            await asyncio.sleep(0.0005)  # slow, but never still
        assert await client.rest() == (b"", "fin")
        await settled(running)


async def test_F02_over_tls_what_an_upstream_said_last_arrives_at_a_slow_client() -> None:
    def play(tls: ssl.SSLSocket) -> None:
        read_head(tls)
        tls.sendall(AGREE + b"\r\n" + LAST)
        tls.unwrap()

    async with tls_upstream(server_context(PAIRS["a"]), play) as port:
        config = chat(port, tls={"ca": "/a.pem"})
        config["upstreams"]["app"]["servers"] = [f"https://127.0.0.1:{port}"]
        async with edge(config, materials=MATERIALS) as running:
            client, _ = await shake(running, receive_buffer_bytes=4096)
            sweeps: set[float] = set()
            await eventually(lambda: sweeps.add(running.worker._sweep_due) or len(sweeps) > 5)
            assert await client.exactly(len(LAST)) == LAST
            assert await client.rest() == (b"", "fin")
            await eventually(lambda: not running.worker._relays)
