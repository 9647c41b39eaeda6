"""Idempotency keys among four real workers: killed in flight, killed when they have answered, and reloaded."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from typing import NamedTuple

import pytest

from tests.appliance.served import TIMEOUT_S, Served
from tests.appliance.test_shared_limits import only, proxies, served

NUM_WORKERS = 4
__all__ = ["served"]  # the fixture


class Answer(NamedTuple):
    status: int
    body: bytes
    replayed: bool


class Works:
    """An upstream that numbers what it carries out, by key; paths that end with /held wait until ``go`` is set."""

    def __init__(self) -> None:
        self.port = 0
        self.done: Counter[str] = Counter()
        self.go = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                await reader.readexactly(2)
                key = head.lower().partition("idempotency-key: ")[2].partition("\r\n")[0]
                self.done[key] += 1
                body = f"{key} {self.done[key]}".encode()
                if head.split(" ")[1].endswith("/held"):
                    await self.go.wait()
                writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                await writer.drain()
        writer.close()
        self._tasks.discard(task)

    async def close(self) -> None:
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def works() -> AsyncIterator[Works]:
    upstream = Works()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.port = server.sockets[0].getsockname()[1]
    yield upstream
    server.close()
    await upstream.close()


def write(served: Served, works: Works, store: str, workers: int = NUM_WORKERS) -> None:
    kept = "memory" if store == "memory" else f"{{path: {served.directory / 'answers.db'}}}"
    served.file.write_text(f"""
runtime_dir: {served.runtime_dir}
admin: {{address: 127.0.0.1:{served.admin_port}}}
log: {{access: "off"}}
workers: {workers}
drain: 1s
listeners:
  - address: 127.0.0.1:{served.port}
upstreams:
  app: {{servers: [http://127.0.0.1:{works.port}]}}
routes:
  - {{to: app, policies: {{idempotency: {{store: {kept}}}}}}}
""")


async def post(served: Served, key: str, path: str = "/") -> Answer | None:
    """One request on a connection of its own; None: the connection was cut."""
    stream = await served.connect()
    stream.writer.write(
        f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: {key}\r\n".encode()
        + b"Content-Length: 2\r\n\r\n{}"
    )
    got = await stream.rest()
    await stream.close()
    head, _, body = got.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 "):
        return None
    return Answer(int(head[9:12]), body, b"Idempotent-Replayed: true" in head)


async def answered(served: Served, key: str) -> Answer:
    """The answer to a request that is sent again as long as another one is in flight, or its worker dies."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            with suppress(ConnectionError):
                answer = await post(served, key)
                if answer is not None and answer.status != 409:
                    return answer
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("store", ["memory", "file"])
async def test_L22_e_a_worker_that_is_killed_in_flight_leaves_its_key_to_the_others(
    served: Served, works: Works, store: str
) -> None:
    write(served, works, store)
    await served.start()
    workers = await proxies(served)
    with only(workers["proxy-1"], workers.values()):
        held = asyncio.create_task(post(served, "k", "/held"))
        await served.until(lambda: works.done["k"] == 1, "the request at its upstream")
    for name in ("proxy-2", "proxy-3", "proxy-4"):
        with only(workers[name], workers.values()):
            refused = await post(served, "k", "/held")
            assert refused is not None
            assert refused.status == 409
    os.kill(workers["proxy-1"], signal.SIGKILL)
    assert await held is None
    works.go.set()
    await served.until(lambda: "proxy-1 serves again" in served.log, "the successor")
    again = await asyncio.gather(*(post(served, "k", "/held") for _ in range(8)))
    assert {answer.status for answer in again if answer is not None} <= {201, 409}
    last = await post(served, "k", "/held")
    while last is None or last.status == 409:
        last = await post(served, "k", "/held")
    assert (last, works.done["k"]) == (Answer(201, b"k 2", True), 2)


@pytest.mark.parametrize("store", ["memory", "file"])
async def test_L22_b_i_what_a_killed_worker_has_answered_is_given_again_by_the_others(
    served: Served, works: Works, store: str
) -> None:
    write(served, works, store)
    await served.start()
    workers = await proxies(served)
    with only(workers["proxy-2"], workers.values()):
        assert await answered(served, "k") == Answer(201, b"k 1", False)
        assert await answered(served, "k") == Answer(201, b"k 1", True)  # it is kept
    os.kill(workers["proxy-2"], signal.SIGKILL)
    await served.until(lambda: "proxy-2 serves again" in served.log, "the successor")
    assert (await served.ask("reload"))["problems"] == []
    workers = await proxies(served)
    for name in ("proxy-1", "proxy-2", "proxy-3"):
        with only(workers[name], workers.values()):
            assert await answered(served, "k") == Answer(201, b"k 1", True)
    assert works.done["k"] == 1


async def test_L22_b_what_a_killed_worker_had_answered_and_not_written_is_given_again_by_the_others(
    served: Served, works: Works
) -> None:
    write(served, works, "file")
    await served.start()
    assert await answered(served, "first") == Answer(201, b"first 1", False)
    assert await answered(served, "first") == Answer(201, b"first 1", True)
    workers = await proxies(served)
    with closing(sqlite3.connect(served.directory / "answers.db", isolation_level=None)) as disk:
        disk.execute("BEGIN IMMEDIATE")  # no worker can write now
        with only(workers["proxy-2"], workers.values()):
            assert await answered(served, "k") == Answer(201, b"k 1", False)
            os.kill(workers["proxy-2"], signal.SIGKILL)
        disk.execute("ROLLBACK")
    await served.until(lambda: "proxy-2 serves again" in served.log, "the successor")
    workers = await proxies(served)
    for name in ("proxy-1", "proxy-2", "proxy-3"):
        with only(workers[name], workers.values()):
            assert await answered(served, "k") == Answer(201, b"k 1", True)
    assert works.done["k"] == 1


@pytest.mark.parametrize("store", ["memory", "file"])
async def test_L22_a_killed_and_reloaded_under_traffic_each_key_has_one_answer(
    served: Served, works: Works, store: str
) -> None:
    write(served, works, store)
    await served.start()
    workers = await proxies(served)
    keys = [f"key-{i}" for i in range(60)]
    told: dict[str, set[bytes]] = {key: set() for key in keys}
    num_cut = 0

    async def ask(own: list[str]) -> None:
        nonlocal num_cut
        for key in own:
            for _ in range(2):
                try:
                    answer = await post(served, key)
                except ConnectionError:
                    answer = None
                if answer is None:
                    num_cut += 1
                elif answer.status == 201:
                    told[key].add(answer.body)

    async def disturb() -> None:
        await served.until(lambda: works.done.total() >= 20, "traffic")
        os.kill(workers["proxy-1"], signal.SIGKILL)
        os.kill(workers["proxy-3"], signal.SIGKILL)
        write(served, works, store, workers=NUM_WORKERS - 1)
        async with asyncio.timeout(TIMEOUT_S):
            while (await served.ask("reload"))["problems"]:  # it had asked one of the dead
                pass

    await asyncio.gather(disturb(), *(ask(keys[i::4]) for i in range(4)), *(ask(keys[i::4]) for i in range(4)))
    for key in keys:
        told[key].add((await answered(served, key)).body)
        told[key].add((await answered(served, key)).body)
    # A key is carried out once more only where the worker that carried it out was killed before the answer was kept.
    assert all(len(answers) <= works.done[key] for key, answers in told.items())
    assert works.done.total() <= len(keys) + num_cut
    for key in keys:
        assert (await answered(served, key)).replayed
