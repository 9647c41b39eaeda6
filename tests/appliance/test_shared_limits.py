"""Limits and permits of four real workers under a supervisor, with a worker killed and a reload in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.appliance.served import TIMEOUT_S, Served, Stream, streaming_upstream

NUM_WORKERS = 4
LIMIT = 40
OPEN = 6


def write(served: Served, upstream_port: int, *, limit: int = LIMIT, workers: int = NUM_WORKERS) -> None:
    served.file.write_text(f"""
runtime_dir: {served.runtime_dir}
admin: {{address: 127.0.0.1:{served.admin_port}}}
log: {{access: "off"}}
workers: {workers}
drain: 1s
listeners:
  - address: 127.0.0.1:{served.port}
upstreams:
  app: {{servers: [http://127.0.0.1:{upstream_port}]}}
limits:
  box: {{requests: {limit}/day, key: client}}
routes:
  - {{match: {{path: /limited}}, to: app, policies: {{rate_limit: [box]}}}}
  - {{match: {{path: /open}}, to: app, policies: {{in_flight: {{max: {OPEN}, key: client}}}}}}
  - {{match: {{path: /*}}, to: app}}
""")


@pytest.fixture
async def upstream() -> AsyncIterator[int]:
    async with streaming_upstream() as port:
        yield port


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    running = Served(tmp_path)
    yield running
    await running.close()


@contextmanager
def only(pid: int, pids: Iterable[int]) -> Iterator[None]:
    """While the others are stopped, this one takes all connections."""
    others = [each for each in pids if each != pid]
    for each in others:
        os.kill(each, signal.SIGSTOP)
    try:
        yield
    finally:
        for each in others:
            os.kill(each, signal.SIGCONT)


async def statuses(served: Served, path: str, num: int) -> Counter[int]:
    """The statuses of so many requests at once, each over a connection of its own."""
    return Counter(await asyncio.gather(*(served.status_of(path) for _ in range(num))))


async def proxies(served: Served) -> dict[str, int]:
    return {name: pid for name, pid in (await served.pids()).items() if name.startswith("proxy")}


async def test_H05_H04_four_workers_admit_exactly_what_one_would(served: Served, upstream: int) -> None:
    write(served, upstream)
    await served.start()
    workers = await proxies(served)
    assert len(workers) == NUM_WORKERS
    for pid in workers.values():  # each worker has its share: of 40, 20 are left
        with only(pid, workers.values()):
            assert await statuses(served, "/limited", 5) == {200: 5}

    os.kill(workers["proxy-2"], signal.SIGKILL)
    await served.until(lambda: "proxy-2 serves again" in served.log, "the successor")
    workers = await proxies(served)
    with only(workers["proxy-2"], workers.values()):
        assert await statuses(served, "/limited", 5) == {200: 5}

    write(served, upstream, limit=30)  # H04: 25 are used of what are 30 now
    assert (await served.ask("reload"))["problems"] == []
    told = [await statuses(served, "/limited", 5) for _ in range(4)]
    assert sum(told, Counter()) == {200: 5, 429: 15}
    for pid in workers.values():
        with only(pid, workers.values()):
            assert await served.status_of("/limited") == 429

    write(served, upstream, limit=33)
    assert (await served.ask("reload"))["problems"] == []
    assert await statuses(served, "/limited", 20) == {200: 3, 429: 17}


async def test_H05_J01_killed_and_reloaded_under_traffic_the_limit_is_exact(served: Served, upstream: int) -> None:
    write(served, upstream)
    await served.start()
    workers = await proxies(served)
    told: Counter[int] = Counter()  # 0: cut, with its worker

    async def ask(num: int) -> None:
        for _ in range(num):
            try:
                told[await served.status_of("/limited")] += 1
            except (ConnectionError, IndexError):
                told[0] += 1

    async def disturb() -> None:
        await served.until(lambda: told.total() >= LIMIT // 4, "traffic")
        os.kill(workers["proxy-1"], signal.SIGKILL)
        os.kill(workers["proxy-3"], signal.SIGKILL)
        write(served, upstream, workers=NUM_WORKERS - 1)
        async with asyncio.timeout(TIMEOUT_S):
            while (await served.ask("reload"))["problems"]:  # it had asked one of the dead
                pass

    await asyncio.gather(disturb(), *(ask(15) for _ in range(8)))
    while told[200] + told[0] < LIMIT:  # they were all answered before
        await ask(1)
    assert told.keys() <= {200, 429, 0}
    assert told[200] <= LIMIT <= told[200] + told[0]
    assert await statuses(served, "/limited", 8) == {429: 8}


async def test_H05_I02_a_killed_workers_permits_are_given_back(served: Served, upstream: int) -> None:
    write(served, upstream, workers=2)
    await served.start()
    workers = await proxies(served)
    held: dict[str, list[Stream]] = {}
    for name, num in (("proxy-1", 4), ("proxy-2", 2)):
        with only(workers[name], workers.values()):
            held[name] = [await open_stream(served) for _ in range(num)]
    assert await statuses(served, "/open", 8) == {429: 8}
    os.kill(workers["proxy-1"], signal.SIGKILL)
    for stream in held["proxy-1"]:
        await stream.rest()
    await served.until(lambda: "proxy-1 serves again" in served.log, "the successor")
    again = [await open_stream(served) for _ in range(4)]
    assert await statuses(served, "/open", 8) == {429: 8}
    for stream in (*again, *held["proxy-2"]):
        await stream.event()


async def open_stream(served: Served) -> Stream:
    stream = await served.connect()
    stream.writer.write(b"GET /open HTTP/1.1\r\nHost: app.example\r\n\r\n")
    await stream.event()
    return stream


async def until_serving(served: Served, num: int) -> None:
    """Wait until so many workers are there, all of which serve."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            children = (await served.ask("status"))["children"]
            if [child["state"] for child in children] == ["serving"] * num:
                return
            await asyncio.sleep(0.05)


async def test_workers_that_come_and_go_by_reloads_count_on(served: Served, upstream: int) -> None:
    write(served, upstream, workers=1)
    await served.start()
    assert await statuses(served, "/limited", 10) == {200: 10}
    for workers in (3, 1):
        write(served, upstream, workers=workers)
        assert (await served.ask("reload"))["problems"] == []
        await until_serving(served, workers)
        assert await statuses(served, "/limited", 10) == {200: 10}
    assert await statuses(served, "/limited", 20) == {200: 10, 429: 10}
