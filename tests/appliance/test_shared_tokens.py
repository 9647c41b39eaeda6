"""Tokens of four real workers under a supervisor: one is killed while its request is open, and a reload follows."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from tests.appliance.served import TIMEOUT_S, Served, Stream, streaming_upstream
from tests.appliance.test_shared_limits import only, proxies

NUM_WORKERS = 4
ALL = 10_000  # tokens a day
RESERVED = 100  # by each request


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    running = Served(tmp_path)
    yield running
    await running.close()


def write(served: Served, upstream_port: int, *, tokens: int = ALL) -> None:
    served.file.write_text(f"""
runtime_dir: {served.runtime_dir}
admin: {{address: 127.0.0.1:{served.admin_port}}}
log: {{access: "off"}}
workers: {NUM_WORKERS}
drain: 1s
listeners:
  - address: 127.0.0.1:{served.port}
upstreams:
  app: {{servers: [http://127.0.0.1:{upstream_port}], kind: openai}}
limits:
  box: {{tokens: {tokens}/day, key: all, algorithm: sliding, headers: [openai]}}
routes:
  - {{match: {{path: /v1/*}}, to: app, policies: {{rate_limit: [box], tokens: {{max_answer: {10 * ALL}}}}}}}
""")


async def ask(served: Served, max_tokens: int) -> tuple[Stream, int]:
    """A request of one prompt token and so many of an answer; the stream, and the tokens that are left."""
    stream = await served.connect()
    body = orjson.dumps({"model": "m", "prompt": "hi", "max_tokens": max_tokens, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    stream.writer.write(head.encode() + body)
    answer = await asyncio.wait_for(stream.reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
    return stream, int(answer.partition(b"x-ratelimit-remaining-tokens: ")[2].split(b"\r\n")[0])


async def used(served: Served, of: int = ALL) -> int:
    """Tokens that are used or reserved, as a request is told which needs more than there ever is."""
    return of - (await ask(served, 10 * ALL))[1]


async def test_what_a_killed_worker_had_reserved_counts_as_used_and_is_not_given_twice(served: Served) -> None:
    async with streaming_upstream() as upstream:
        write(served, upstream)
        await served.start()
        workers = await proxies(served)
        streams: dict[str, Stream] = {}
        for at, (name, pid) in enumerate(workers.items()):
            with only(pid, workers.values()):
                streams[name], left = await ask(served, RESERVED - 1)
            assert left == ALL - RESERVED * (at + 1)
        os.kill(workers["proxy-2"], signal.SIGKILL)
        await streams.pop("proxy-2").rest()
        await served.until(lambda: "proxy-2 serves again" in served.log, "the successor")
        assert await used(served) == RESERVED * NUM_WORKERS

        for stream in streams.values():  # whose clients leave in the middle: what they were sent is used
            await stream.close()
        metrics = await served.metrics()
        async with asyncio.timeout(TIMEOUT_S):
            while metrics["llm_usage_requests_total"] < len(streams):
                metrics = await served.metrics()
        assert metrics["llm_tokens_total"] > 0
        assert await used(served) == RESERVED + metrics["llm_tokens_total"]

        write(served, upstream, tokens=2 * ALL)
        assert (await served.ask("reload"))["problems"] == []
        assert await used(served, of=2 * ALL) == RESERVED + metrics["llm_tokens_total"]
