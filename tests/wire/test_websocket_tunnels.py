"""The life of a WebSocket tunnel in the proxy: what it goes through, what is counted, and what ends it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.wire.harness import (
    OK,
    Edge,
    RawUpstream,
    UpstreamSide,
    answering,
    edge,
    eventually,
    raw_upstream,
    reached,
    reload,
)
from tests.wire.tls import MATERIALS, PAIRS, TLS, read_head, server_context, tls_client, tls_upstream
from tests.wire.websocket import AGREE, ASK, PIECE, agreeing, chat, echo, frame, settled, shake, tunnelled

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


HELLO = frame(1, b"hello", masked=True)


@pytest.fixture
def log_pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_F05_a_tunnel_through_tls_on_both_sides(version: ssl.TLSVersion) -> None:
    message = frame(2, PIECE * 16)
    heads: list[bytes] = []

    def play(tls: ssl.SSLSocket) -> None:
        heads.append(read_head(tls))
        tls.sendall(AGREE + b"\r\nearly")
        left = len(message)
        while left:
            data = tls.recv(65536)
            left -= len(data)
            tls.sendall(data)
        tls.unwrap()

    context = server_context(PAIRS["a"])
    context.maximum_version = version
    async with tls_upstream(context, play) as port:
        config = {**chat(port, tls={"ca": "/a.pem"}), "listener": TLS}
        config["upstreams"]["app"]["servers"] = [f"https://127.0.0.1:{port}"]
        async with edge(config, materials=MATERIALS) as running, tls_client(running) as client:
            client.writer.write(ASK.replace(b"Host: x", b"Host: a.example") + b"\r\n")
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101 ")
            assert await client.reader.readexactly(5) == b"early"
            client.writer.write(message)
            assert await client.reader.readexactly(len(message)) == message
            assert await client.reader.read() == b""  # the upstream's end, as a close_notify
            assert b"Upgrade: websocket\r\n" in heads[0]


async def test_F07_a_tunnel_to_a_unix_socket() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="hr") as directory:
        path = str(Path(directory) / "app.sock")
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen(16)
        listening.setblocking(False)
        async with raw_upstream(agreeing(echo), listening) as upstream:
            config = chat(1)
            config["upstreams"]["app"]["servers"] = [f"unix:{path}"]
            async with edge(config) as running:
                client, _ = await shake(running)
                await client.send(HELLO)
                assert await client.until(HELLO) == HELLO
                client.close()
                await reached(upstream.left)
                await settled(running)


async def test_D08_a_drain_waits_for_tunnels_and_ends_them_at_its_deadline(log_pipe: tuple[int, int]) -> None:
    reading, writing = log_pipe
    async with (
        raw_upstream(agreeing(echo)) as upstream,
        edge(chat(upstream.port), access_log_fd=writing) as running,
    ):
        staying, _ = await shake(running)
        leaving, _ = await shake(running)
        drain = asyncio.get_running_loop().create_task(running.worker.drain(0.5))
        await asyncio.sleep(0)
        for client in (staying, leaving):  # both still speak
            await client.send(HELLO)
            assert await client.until(HELLO) == HELLO
        leaving.close()
        await eventually(lambda: len(running.worker._relays) == 1)
        assert not drain.done()
        assert await drain is False
        assert (await staying.rest())[0] == b""
        await eventually(lambda: upstream.left.is_set())
        lines = os.read(reading, 65536).splitlines()
        assert [json.loads(line)["status"] for line in lines] == [101, 101]


async def test_D08_a_drain_is_over_when_the_last_tunnel_is() -> None:
    async with tunnelled(echo) as (_, running, client):
        drain = asyncio.get_running_loop().create_task(running.worker.drain(30.0))
        await asyncio.sleep(0)
        client.close()
        assert await drain is True


async def test_a_tunnel_outlives_a_reload_that_takes_its_route_and_upstream_away() -> None:
    async with tunnelled(echo) as (_, running, client):
        await reload(running, {"routes": []})
        await client.send(HELLO)
        assert await client.until(HELLO) == HELLO
        assert (await running.ask(GET)).status == 404
        client.close()
        await eventually(lambda: not running.worker._relays)


async def test_a_tunnel_is_one_line_in_the_log_and_one_request_in_the_metrics(log_pipe: tuple[int, int]) -> None:
    reading, writing = log_pipe
    async with (
        raw_upstream(agreeing(echo)) as upstream,
        edge(chat(upstream.port), access_log_fd=writing) as running,
    ):
        client, _ = await shake(running)
        await client.send(HELLO)
        await client.until(HELLO)
        with pytest.raises(BlockingIOError):  # not before its end
            os.read(reading, 1)
        client.close()
        await settled(running)
        log = b""

        def written() -> bool:
            nonlocal log
            try:
                log += os.read(reading, 65536)
            except BlockingIOError:
                return False
            return log.endswith(b"\n")

        await eventually(written)
        (line,) = [json.loads(text) for text in log.splitlines()]
        assert (line["status"], line["ending"], line["reason"]) == (101, "complete", "the client closed")
        assert (line["bytes_in"], line["bytes_out"]) == (len(HELLO), len(HELLO))
        assert (line["upstream"], line["attempts"], line["target"]) == ("app", 1, "/chat?room=1")
        assert running.worker._snapshot is not None
        metrics = running.worker._snapshot.metrics["*/*"]
        assert [counter.value for counter in metrics._requests[1:6]] == [1, 0, 0, 0, 0]
        assert (metrics._in.value, metrics._out.value) == (len(HELLO), len(HELLO))


async def kept_then_switched(side: UpstreamSide) -> None:
    """Answer plain requests, then agree to a handshake."""
    while (head := await side.head()) is not None:
        if b"upgrade" not in head.lower():
            await side.send(OK)
            continue
        await side.send(AGREE + b"\r\n")
        await echo(side)
        return


@pytest.mark.parametrize("ends", ["client", "upstream"])
async def test_a_kept_connection_that_became_a_tunnel_is_never_used_again(ends: str) -> None:
    async def script(side: UpstreamSide) -> None:
        if ends == "client":
            await kept_then_switched(side)
            return
        while (head := await side.head()) is not None:
            if b"upgrade" not in head.lower():
                await side.send(OK)
                continue
            await side.send(AGREE + b"\r\nbye")
            return

    async with raw_upstream(script) as upstream, edge(chat(upstream.port)) as running:
        assert (await running.ask(GET)).status == 200
        client, _ = await shake(running)
        assert upstream.num_connections == 1  # the one that was kept
        if ends == "client":
            await client.send(HELLO)
            await client.until(HELLO)
            client.close()
        else:
            assert await client.rest() == (b"bye", "fin")
        await eventually(lambda: not running.worker._relays)
        assert (await running.ask(GET)).status == 200
        assert upstream.num_connections == 2
        assert upstream.received.count(HELLO) == (1 if ends == "client" else 0)


def breaker(running: Edge) -> Any:
    return running.worker.breakers()["app"]


async def test_a_tunnel_tells_the_breaker_of_its_beginning_and_never_of_its_end() -> None:
    async with raw_upstream(agreeing(echo)) as upstream:
        config = chat(upstream.port, breaker={"min_requests": 1, "failures": "1%"})
        async with edge(config) as running:
            running.worker.order_breakers("open", ["app"], 0.001, 0.0)
            await eventually(lambda: breaker(running)["next_probe_s"] == 0)
            client, _ = await shake(running)  # the probe
            assert breaker(running)["state"] == "closed"  # while it is still open
            for number in range(3):
                other, _ = await shake(running)
                other.reset() if number % 2 else other.close()
            client.reset()
            await settled(running)
            assert breaker(running)["state"] == "closed"


async def test_a_tunnel_holds_its_place_in_flight_until_its_end() -> None:
    async with raw_upstream(agreeing(echo)) as upstream:
        config = chat(upstream.port)
        config["routes"][0]["policies"] = {"in_flight": {"max": 1}}
        async with edge(config) as running:
            for _ in range(3):
                client, _ = await shake(running)
                assert (await running.ask(ASK + b"\r\n")).status == 503
                client.close()
                await settled(running)


async def test_an_upgrade_that_a_policy_refuses_is_answered_and_the_connection_ends() -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = chat(upstream.port)
        config["routes"][0]["policies"] = {"access": {"deny": ["127.0.0.1/32"]}}
        async with edge(config) as running:
            client = await running.connect()
            await client.send(ASK + b"\r\n" + GET)
            answer = await client.answer()
            assert (answer.status, answer.get("connection")) == (403, "close")
            assert (await client.rest())[0] == b""
            assert upstream.received == b""


async def test_a_websocket_behind_another_request_on_the_same_connection() -> None:
    async with raw_upstream(kept_then_switched) as upstream, edge(chat(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET + ASK + b"\r\n" + HELLO)
        assert (await client.answer()).body == b"ok"
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        assert await client.until(HELLO) == HELLO


async def test_a_client_that_leaves_while_its_handshake_is_answered_leaves_nothing_behind() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.head()
        await side.gone()

    async with raw_upstream(script) as upstream, edge(chat(upstream.port)) as running:
        client = await running.connect()
        await client.send(ASK + b"\r\n" + HELLO)
        await eventually(lambda: bool(upstream.heads))
        client.close()
        await reached(upstream.left)
        await settled(running)
        assert isinstance(upstream, RawUpstream)
        assert HELLO not in upstream.received
