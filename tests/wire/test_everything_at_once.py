"""Clients and an upstream that do whatever comes to their minds: nothing is left behind, and nothing is our fault."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from tests.wire.harness import OK, Edge, UpstreamSide, edge, eventually, raw_upstream
from tests.wire.websocket import AGREE, ASK, chat, echo, settled

NUM_CLIENTS = 30
MOODS = ("well", "well", "closes", "resets", "half", "early", "slowly")
EARLY = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno"


class Moody:
    """An upstream that decides anew with every request."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    async def __call__(self, side: UpstreamSide) -> None:
        with suppress(OSError):
            while (head := await side.head()) is not None:
                mood = self._draw.choice(MOODS)
                if mood == "closes":
                    return
                if mood == "resets":
                    side.reset()
                    return
                if b"Upgrade: websocket" in head:
                    await self._tunnel(side, mood)
                    return
                if not await self._answer(side, head, mood):
                    return

    async def _tunnel(self, side: UpstreamSide, mood: str) -> None:
        await side.send(AGREE + b"\r\n" + (b"early" if mood == "early" else b""))
        if mood == "slowly":
            side.send_no_more()
        if mood != "half":
            await echo(side)

    async def _answer(self, side: UpstreamSide, head: bytes, mood: str) -> bool:
        if mood == "early":
            await side.send(EARLY)
            return False
        left = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0) - len(side.buffered())
        while left > 0:
            data = await side.receive()
            if not data:
                return False
            left -= len(data)
        if mood == "half":
            await side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf")
            return False
        if mood == "slowly":
            await side.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok")
            await asyncio.sleep(0)
            await side.send(b"\r\n0\r\n\r\n")
        else:
            await side.send(OK)
        return True


def sayings(draw: random.Random) -> bytes:
    """Something that a client may send."""
    size = draw.choice((1, 1000, 150_000, 300_000))
    post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
    return draw.choice(
        (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            post + b"x" * size,
            post + b"x" * (size // 2),
            b"GET / HTTP/1.1\r\nHo",
            ASK + b"\r\nbehind",
            b"\0",
        )
    )


async def visit(running: Edge, draw: random.Random) -> None:
    client = await running.connect()
    for _ in range(draw.randint(1, 4)):
        await client.send(sayings(draw))
        if draw.random() < 0.5:
            with suppress(ConnectionError, TimeoutError):
                await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client.sock, 65536), 0.02)
    draw.choice((client.close, client.reset))()


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_left_behind(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(seed)
    async with raw_upstream(Moody(draw)) as upstream:
        upstream.records = False
        config: dict[str, Any] = chat(upstream.port, breaker={"min_requests": 1_000_000}, health={"fails": 1_000_000})
        config["routes"][0]["policies"] = {"in_flight": {"max": NUM_CLIENTS * 4}, "size_limit": {"body": "200kB"}}
        async with edge(config) as running:
            for _ in range(4):
                async with asyncio.TaskGroup() as clients:
                    for _ in range(NUM_CLIENTS):
                        clients.create_task(visit(running, draw))
            await eventually(lambda: not running.worker._relays and not running.worker._open())
            assert running.worker._snapshot is not None
            running.worker._snapshot.upstreams["app"].servers[0].close()  # what is idle
            await settled(running)
            assert running.worker.breakers()["app"]["state"] == "closed"
    assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []
