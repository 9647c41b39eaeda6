"""Counters of four workers as a scraper sees them, of whom one is killed, and after a restart."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.appliance.served import Served, streaming_upstream

NUM_SCRAPES = 20
KILLED_AFTER = 7


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    running = Served(tmp_path)
    yield running
    await running.close()


async def test_K04_counters_of_four_workers_never_go_back_and_a_restart_begins_anew(served: Served) -> None:
    async with streaming_upstream() as port:
        served.write(port, workers=4)
        await served.start()
        pages: list[dict[str, float]] = []
        for i in range(NUM_SCRAPES):
            if i == KILLED_AFTER:
                os.kill((await served.pids())["proxy-2"], signal.SIGKILL)
            await asyncio.gather(*(served.status_of("/") for _ in range(4)), return_exceptions=True)
            pages.append(await served.metrics())
        await served.until(lambda: "proxy-2 serves again" in served.log, "the successor")
        pages.append(await served.metrics())
        counters = {name for name in pages[0] if name.endswith(("_total", "_count", "_bucket", "_sum"))}
        assert "headrace_requests_total" in counters
        for before, after in pairwise(pages):
            assert {name for name in counters if after.get(name, -1.0) < before.get(name, 0.0)} == set()
        last = pages[-1]["headrace_requests_total"]
        assert last >= KILLED_AFTER * 4
        served.signal(signal.SIGTERM)
        assert await served.wait() == 0
        await served.start()
        assert await served.status_of("/") == 200
        assert (await served.metrics())["headrace_requests_total"] < last
