"""Budgets of four real workers under a supervisor: killed, reloaded and started again, they give what they have."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.appliance.served import TIMEOUT_S, Served
from tests.appliance.test_shared_limits import only, proxies, until_serving

NUM_WORKERS = 4
GIVEN = 40  # requests
USED = 15  # tokens of each
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 200}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: app.example\r\nContent-Type: application/json\r\n"
ASK = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": USED}
ANSWER = json.dumps({"choices": [{"message": {"role": "assistant", "content": "ho"}}], "usage": USAGE}).encode()


@pytest.fixture
async def upstream() -> AsyncIterator[int]:
    """The port of an upstream that answers every chat request, and tells what it has used."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(len(BODY))
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)
                writer.write(head + ANSWER)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    running = Served(tmp_path)
    yield running
    await running.close()


def write(served: Served, upstream_port: int, budgets: str, workers: int = NUM_WORKERS) -> None:
    served.file.write_text(f"""
runtime_dir: {served.runtime_dir}
admin: {{address: 127.0.0.1:{served.admin_port}}}
log: {{access: "off"}}
workers: {workers}
drain: 5s
listeners:
  - address: 127.0.0.1:{served.port}
upstreams:
  app: {{servers: [http://127.0.0.1:{upstream_port}], kind: openai}}
budgets: {budgets}
usage: {{path: {served.directory}/usage.db}}
routes:
  - {{to: app, policies: {{tokens: {{}}}}}}
""")


def requests(given: int = GIVEN, **more: str) -> str:
    return json.dumps({"box": {"key": "all", "requests": given, "tokens": 1_000_000, **more}})


async def statuses(served: Served, num: int) -> Counter[int]:
    """The statuses of so many requests at once, each over a connection of its own; 0: cut."""
    return Counter(await asyncio.gather(*(status_of(served) for _ in range(num))))


async def status_of(served: Served) -> int:
    stream = await served.connect()
    try:
        stream.writer.write(ASK)
        told = await stream.rest()
    except ConnectionError:
        told = b""
    await stream.close()
    return int(told.split()[1]) if told.endswith((ANSWER, b"}}")) else 0


def recorded(served: Served) -> tuple[int, int]:
    """(requests, tokens) of the record of usage."""
    with closing(sqlite3.connect(served.directory / "usage.db")) as file:
        query = "SELECT coalesce(sum(requests), 0), coalesce(sum(prompt_tokens + completion_tokens), 0) FROM usage"
        found: tuple[int, int] = file.execute(query).fetchone()
        return found


async def test_killed_reloaded_and_started_again_a_budget_is_exact(served: Served, upstream: int) -> None:
    write(served, upstream, requests())
    await served.start()
    workers = await proxies(served)
    for pid in workers.values():  # each worker has its share: of 40, 20 are left
        with only(pid, workers.values()):
            assert await statuses(served, 5) == {200: 5}
    await served.until(lambda: recorded(served) == (20, 20 * USED), "20 requests in the record")

    os.kill(workers["proxy-2"], signal.SIGKILL)
    await served.until(lambda: "proxy-2 serves again" in served.log, "the successor")
    write(served, upstream, requests(given=28))
    assert (await served.ask("reload"))["problems"] == []
    assert await statuses(served, 12) == {200: 8, 429: 4}

    write(served, upstream, requests())
    served.signal(signal.SIGTERM)
    assert await served.wait() == 0
    assert recorded(served) == (28, 28 * USED)
    await served.start()
    assert await statuses(served, 16) == {200: 12, 429: 4}

    # Another period is another count, which begins with what was used.
    write(served, upstream, requests(given=41, per="day"))
    await served.until(lambda: recorded(served) == (40, 40 * USED), "40 requests in the record")
    assert (await served.ask("reload"))["problems"] == []
    assert await statuses(served, 4) == {200: 1, 429: 3}
    metrics = await served.metrics()
    assert metrics["headrace_budget_refused_total"] == 7
    assert metrics["headrace_usage_recorded_total"] == 13
    assert metrics["headrace_usage_dropped_total"] == 0


async def test_when_all_of_it_is_killed_at_once_what_was_written_counts(served: Served, upstream: int) -> None:
    write(served, upstream, requests(), workers=2)
    await served.start()
    assert await statuses(served, 30) == {200: 30}
    await served.until(lambda: recorded(served) == (30, 30 * USED), "30 requests in the record")
    assert served.process is not None
    for pid in (served.process.pid, *(await proxies(served)).values()):
        os.kill(pid, signal.SIGKILL)
    await served.wait()
    await served.start()
    assert await statuses(served, 16) == {200: 10, 429: 6}


async def test_killed_and_reloaded_under_traffic_a_budget_gives_no_more(served: Served, upstream: int) -> None:
    write(served, upstream, json.dumps({"box": {"key": "all", "tokens": GIVEN * USED + 300}}))
    await served.start()
    workers = await proxies(served)
    told: Counter[int] = Counter()

    async def ask(num: int) -> None:
        for _ in range(num):
            told[await status_of(served)] += 1

    async def disturb() -> None:
        await served.until(lambda: told.total() >= GIVEN // 4, "traffic")
        os.kill(workers["proxy-1"], signal.SIGKILL)
        os.kill(workers["proxy-3"], signal.SIGKILL)
        write(served, upstream, json.dumps({"box": {"key": "all", "tokens": GIVEN * USED}}), workers=NUM_WORKERS - 1)
        async with asyncio.timeout(TIMEOUT_S):
            while (await served.ask("reload"))["problems"]:  # it had asked one of the dead
                pass

    await asyncio.gather(disturb(), *(ask(15) for _ in range(6)))
    await until_serving(served, NUM_WORKERS - 1)
    while (status := await status_of(served)) != 429:
        told[status] += 1
    assert told.keys() <= {200, 429, 0}
    # What a killed worker had reserved counts as used, 208 for each request that was cut; a request fits while 208 do.
    assert told[200] * USED <= GIVEN * USED
    assert told[200] * USED + told[0] * 210 > GIVEN * USED - 210
