"""Connections to upstreams that are kept, go stale or fail; and what is tried again."""

from __future__ import annotations

import asyncio
import socket

import pytest

from proxy import forward
from tests.wire.harness import OK, UpstreamSide, answering, app, edge, eventually, raw_upstream

#: Tests that put something in the place of what a compiled module holds for good.
interpreted = pytest.mark.skipif(not str(forward.__file__).endswith(".py"), reason="compiled: nothing can be replaced")

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /pay HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"


def refused_port() -> int:
    """A port of loopback on which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def test_connections_are_reused() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        for _ in range(5):
            assert (await running.ask(GET)).status == 200
        assert upstream.num_connections == 1


async def test_idle_connections_are_bounded_in_number_and_time() -> None:
    config = {"connections": 1, "keep_alive": "100ms"}
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port, **config)) as running:
        clients = [await running.connect() for _ in range(3)]
        for client in clients:
            await client.send(GET)
        for client in clients:
            assert (await client.answer()).status == 200
        server = running.worker._snapshot.upstreams["app"].servers[0]
        assert server.num_idle <= 1
        await eventually(lambda: server.num_idle == 0)


def hanging_up(after: int) -> tuple[object, list[int]]:
    """A script that answers ``after`` requests of a connection and ends it upon the next; and the number of those."""
    cut = [0]

    async def script(side: UpstreamSide) -> None:
        for _ in range(after):
            if await side.request() is None:
                return
            await side.send(OK)
        if await side.request() is not None:
            cut[0] += 1

    return script, cut


async def test_D01_a_stale_connection_is_not_seen_by_a_get() -> None:
    script, cut = hanging_up(1)
    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        assert [(await running.ask(GET)).status for _ in range(4)] == [200] * 4
        assert cut[0] == 3
        assert running.worker.statistics()["upstreams"]["app"]["breaker"] == "closed"


async def test_D01_a_post_on_a_stale_connection_is_a_clear_502() -> None:
    script, cut = hanging_up(1)
    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        assert (await running.ask(POST)).status == 200
        answer = await running.ask(POST)
        assert answer.status == 502
        assert b"kept-alive connection" in answer.body
        assert len(upstream.heads) == 2
        assert cut[0] == 1


async def test_D01_a_connection_closed_while_idle_is_not_used() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok")
        side.close()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        for number in range(1, 4):
            assert (await running.ask(POST)).status == 200
            server = running.worker._snapshot.upstreams["app"].servers[0]
            await eventually(lambda server=server: server.take() is None)
            assert upstream.num_connections == number


async def test_D02_a_post_that_was_read_is_never_sent_again() -> None:
    async def closing(side: UpstreamSide) -> None:
        await side.request()

    async with raw_upstream(closing) as bad, raw_upstream(answering(OK)) as good:
        # The bad one is asked first: the good one is made busy.
        async with edge(app(bad.port)) as running:
            assert (await running.ask(POST)).status == 502
        async with edge(app(bad.port, good.port)) as running:
            answers = [(await running.ask(POST)).status for _ in range(8)]
            assert set(answers) <= {200, 502}
        assert len(bad.heads) + len(good.heads) == 1 + 8


async def test_D02_a_post_that_times_out_is_never_sent_again() -> None:
    async def silent(side: UpstreamSide) -> None:
        await side.request()
        await side.gone()

    async with (
        raw_upstream(silent) as upstream,
        edge(app(upstream.port, timeouts={"first_byte": "100ms"})) as running,
    ):
        answer = await running.ask(POST)
        assert answer.status == 504
        assert b"0.1 s" in answer.body
        assert len(upstream.heads) == 1


async def test_D02_a_refused_connection_goes_to_another_server() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(refused_port(), upstream.port)) as running:
        assert [(await running.ask(POST)).status for _ in range(6)] == [200] * 6
        assert len(upstream.heads) == 6


@interpreted
async def test_D01_a_stale_connection_costs_none_of_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_draw", lambda: 0.0)  # the first server, as long as it may be asked

    async def answer_once_and_go(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")
        going.close()
        writer.close()

    going = await asyncio.start_server(answer_once_and_go, "127.0.0.1", 0)
    port = going.sockets[0].getsockname()[1]
    async with raw_upstream(answering(OK)) as other, edge(app(port, other.port, retry={"attempts": 2})) as running:
        assert (await running.ask(GET)).status == 200
        assert not other.heads
        assert (await running.ask(GET)).status == 200
        assert len(other.heads) == 1


async def test_D02_a_5xx_is_an_answer_and_not_tried_again() -> None:
    busy = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    async with raw_upstream(answering(busy)) as upstream, edge(app(upstream.port)) as running:
        assert (await running.ask(POST)).status == 503
        assert len(upstream.heads) == 1


async def test_a_get_that_broke_off_goes_to_another_server() -> None:
    async def closing(side: UpstreamSide) -> None:
        await side.request()

    async with (
        raw_upstream(closing) as bad,
        raw_upstream(answering(OK)) as good,
        edge(app(bad.port, good.port)) as running,
    ):
        assert [(await running.ask(GET)).status for _ in range(6)] == [200] * 6


async def test_a_put_is_sent_again_with_its_whole_body() -> None:
    async def closing(side: UpstreamSide) -> None:
        await side.request()

    put = b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
    async with (
        raw_upstream(closing) as bad,
        raw_upstream(answering(OK)) as good,
        edge(app(bad.port, good.port)) as running,
    ):
        for _ in range(4):
            client = await running.connect()
            await client.send(put + b"he")
            await client.send(b"llo")
            assert (await client.answer()).status == 200
        assert good.received.count(b"hello") == 4


async def test_nobody_listens() -> None:
    async with edge(app(refused_port())) as running:
        answer = await running.ask(GET)
        assert answer.status == 502
        assert b"cannot be reached" in answer.body


async def test_an_upstream_that_fails_too_often_is_spared() -> None:
    breaker = {"min_requests": 4, "failures": "50%", "open": "30s"}
    failing = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
    async with raw_upstream(answering(failing)) as upstream, edge(app(upstream.port, breaker=breaker)) as running:
        statuses = [(await running.ask(GET)).status for _ in range(8)]
        assert statuses == [500] * 4 + [503] * 4
        answer = await running.ask(GET)
        assert int(answer.get("retry-after") or 0) >= 1
        assert len(upstream.heads) == 4


@interpreted
async def test_a_fault_of_ours_while_sending_is_a_500_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        assert (await running.ask(GET)).status == 200  # leaves a connection, on which nothing is awaited
        with monkeypatch.context() as patched:
            patched.setattr(forward, "request_head", lambda *_: 1 / 0)
            assert [(await running.ask(GET)).status for _ in range(2)] == [500, 500]
        server = running.worker.statistics()["upstreams"]["app"]["servers"][f"http://127.0.0.1:{upstream.port}"]
        assert server["in_flight"] == 0
        assert running.worker.statistics()["exchanges"] == 0
        assert (await running.ask(GET)).status == 200


@pytest.mark.parametrize("kind", ["openai", "http"])
async def test_an_upstreams_key_replaces_the_clients(kind: str) -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = app(upstream.port, kind=kind, key={"secret": "k"})
        async with edge(config, materials={"secret:k": b"sk-upstream\n"}) as running:
            await running.ask(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer client\r\n\r\n")
            assert b"Authorization: Bearer sk-upstream\r\n" in upstream.heads[0]
            assert b"client" not in upstream.heads[0]
