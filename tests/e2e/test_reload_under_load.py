"""All of a configuration changes under five hundred requests a second and a hundred streams, and none of them fails.

Routes, policies, pools, certificates and listeners are changed by each reload; workers are two, so that whatever they
share is shared under load, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.appliance import TIMEOUT_S, Appliance, free_port, gone

NUM_STREAMS = 100
NUM_CLIENTS = 20
RATE_PER_CLIENT = 25  # requests a second: five hundred in all
NUM_RELOADS = 8
REQUEST = b"GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n"

#: What reloads change, in turn: servers and how one is chosen, policies and their numbers.
POOLS = ("[{a}]", "[{a}, {b}]", "[{b}]", "[{b}, {a}]")
BALANCES = ("least_requests", "round_robin", "{hash: client}", "{hash: {header: Host}}")
POLICIES = (
    "{{}}",
    "{{in_flight: {{max: 1000}}}}",
    "{{rate_limit: [many], size_limit: {{body: 1MiB}}}}",
    "{{rate_limit: [many], trim: {{cookies: {{drop: [a]}}}}, headers: {{response: {{set: {{X-Round: yes}}}}}}}}",
)


class Upstream:
    """Answers /small at once, and every other request with an event each tenth of a second until it is released."""

    def __init__(self) -> None:
        self.port = free_port()
        self.released = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    async def close(self) -> None:
        """End what is open: the edge keeps its connections."""
        self.released.set()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET /small "):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nsmall")
                    continue
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                while not self.released.is_set():
                    writer.write(b"9\r\ndata: 1\n\n\r\n")
                    await asyncio.sleep(0.1)
                writer.write(b"c\r\ndata: last\n\n\r\n0\r\n\r\n")
        writer.close()


@contextlib.asynccontextmanager
async def upstreams() -> AsyncIterator[tuple[Upstream, Upstream]]:
    a, b = Upstream(), Upstream()
    async with (
        await asyncio.start_server(a.answer, "127.0.0.1", a.port, backlog=512),
        await asyncio.start_server(b.answer, "127.0.0.1", b.port, backlog=512),
    ):
        try:
            yield a, b
        finally:
            await a.close()
            await b.close()
            await asyncio.sleep(0.1)  # what was aborted is let go of


def configuration(number: int, a: int, b: int, plain_port: int, other_port: int) -> str:
    pool = POOLS[number % len(POOLS)].format(a=f"'http://127.0.0.1:{a}'", b=f"'http://127.0.0.1:{b}'")
    policies = POLICIES[number % len(POLICIES)]
    balance = BALANCES[number % len(BALANCES)].replace("{", "{{").replace("}", "}}")
    more = f"  - address: 127.0.0.1:{other_port}\n" if number % 2 else ""
    return f"""
workers: 2
listeners:
  - address: 127.0.0.1:{{port}}
    tls: {{{{certificates: [{{{{cert: {{tls}}/localhost.pem, key: {{tls}}/localhost.key}}}}]}}}}
  - address: 127.0.0.1:{plain_port}
{more}upstreams:
  app: {{{{servers: {pool}, balance: {balance}, breaker: {{{{open: {10 + number}s}}}}}}}}
  unused{number}: {{{{servers: ['http://127.0.0.1:{b}']}}}}
limits:
  many: {{{{key: client, requests: {100000 + number}/s}}}}
routes:
  - {{{{name: other{number}, match: {{{{path: /other{number}}}}}, respond: {{{{status: 204}}}}}}}}
  - {{{{name: all, match: {{{{path: /*, methods: [GET, POST]}}}}, to: app, policies: {policies}}}}}
"""


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    made = Appliance(tmp_path, "", tmp_path)
    yield made
    assert made.stop() == 0, made.log


async def ask(port: int, ended: asyncio.Event) -> int:
    """Requests at an even rate on one connection, which must stay: how many there were."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    loop = asyncio.get_running_loop()
    num_answers, due = 0, loop.time()
    while not ended.is_set():
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        assert b"Connection: close" not in head
        assert await reader.readexactly(5) == b"small"
        num_answers += 1
        due += 1 / RATE_PER_CLIENT
        await asyncio.sleep(max(0.0, due - loop.time()))
    await gone(writer)
    return num_answers


async def follow(appliance: Appliance, opened: asyncio.Barrier) -> bool:
    """Open a stream and read it to its end: whether that came as it should."""
    reader, writer = await asyncio.open_connection("127.0.0.1", appliance.port, ssl=appliance.trust)
    writer.write(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    await reader.readuntil(b"data: 1\n\n\r\n")
    await opened.wait()
    rest = await reader.readuntil(b"\r\n0\r\n\r\n")
    await gone(writer)
    return rest.endswith(b"data: last\n\n\r\n0\r\n\r\n")


async def test_J01_everything_changes_under_load_and_nothing_fails(appliance: Appliance) -> None:
    plain_port, other_port = free_port(), free_port()
    async with asyncio.timeout(3 * TIMEOUT_S), upstreams() as (a, b):
        appliance.write(configuration(0, a.port, b.port, plain_port, other_port))
        await asyncio.to_thread(appliance.start)
        opened, ended = asyncio.Barrier(NUM_STREAMS + 1), asyncio.Event()
        streams = [asyncio.create_task(follow(appliance, opened)) for _ in range(NUM_STREAMS)]
        await opened.wait()
        clients = [asyncio.create_task(ask(plain_port, ended)) for _ in range(NUM_CLIENTS)]
        for number in range(1, NUM_RELOADS + 1):
            for name in ("localhost.pem", "localhost.key"):
                (appliance.tls / name).unlink()
            await asyncio.to_thread(appliance.run, "cert", "local", "--dir", str(appliance.tls))
            appliance.write(configuration(number, a.port, b.port, plain_port, other_port))
            await asyncio.to_thread(appliance.run, "reload", "--wait", "-c", str(appliance.file))
            assert not any(client.done() for client in clients)  # a client ends early by failing only
        ended.set()
        answers = await asyncio.gather(*clients)
        assert all(num > NUM_RELOADS for num in answers)
        a.released.set()
        b.released.set()
        assert await asyncio.gather(*streams) == [True] * NUM_STREAMS
