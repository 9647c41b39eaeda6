"""What tests of upstreams share: scripts that answer, and looks into a running edge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxy.upstream.connections import Server
from tests.wire.harness import (
    OK,
    Edge,
    Script,
    UpstreamSide,
    answering,
)

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


CHECK = {"path": "/healthz", "interval": "10ms", "rise": 1, "fall": 1}


def named(name: bytes) -> Script:
    """Answer with a name."""
    return answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(name), name))


def checked(answer: Callable[[], bytes]) -> Script:
    """Answer checks with what ``answer`` says, and everything else with 200."""

    async def script(side: UpstreamSide) -> None:
        while (head := await side.head()) is not None:
            await side.send(answer() if head.startswith(b"GET /healthz") else OK)

    return script


def server_of(running: Edge, index: int = 0) -> Server:
    snapshot = running.worker._snapshot
    assert snapshot is not None
    return snapshot.upstreams["app"].servers[index]


class Gate:
    """A script that answers the requests of all its connections only when it is told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.num_inside = 0
        self.most_inside = 0

    async def __call__(self, side: UpstreamSide) -> None:
        while await side.request() is not None:
            self.num_inside += 1
            self.most_inside = max(self.most_inside, self.num_inside)
            await self.open.wait()
            self.num_inside -= 1
            await side.send(OK)
