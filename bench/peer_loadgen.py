"""MLPerf's LoadGen asks a server: its Server scenario, arrivals of a Poisson process whatever is still unanswered.

    python bench/peer_loadgen.py PORT REQUEST_FILE       (bench/peer_process.py speaks to it)

Times count from when LoadGen wanted to ask, not from when a connection was free. Runs in an environment of its own.
"""

from __future__ import annotations

import asyncio
import math
import re
import sys
import tempfile
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import mlperf_loadgen as loadgen
import uvloop

from bench.peer_process import serve

PERCENTILES = ("50.00", "99.00")
PATIENCE_S = 10.0  # for one answer, which is then a failed one: LoadGen itself waits for ever


class Connection(asyncio.Protocol):
    """One kept connection: asks, and says when its answer is whole."""

    def __init__(self, free: list[Connection]) -> None:
        self._free = free
        self._unread = b""
        self._query: int | None = None
        self._give_up: asyncio.TimerHandle | None = None
        self.num_failed = 0
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self, request: bytes, query: int) -> None:
        self._query = query
        self._give_up = asyncio.get_running_loop().call_later(PATIENCE_S, self.transport.abort)
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        head, blank, body = self._unread.partition(b"\r\n\r\n")
        if not blank:
            return
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if length is None:
            self._end(failed=True)
        elif len(body) >= int(length[1]):
            self._end(failed=b" 200 " not in head[:16])

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._free:  # a server may close what is idle
            self._free.remove(self)
        if self._query is not None:
            self._end(failed=True)

    def _end(self, *, failed: bool) -> None:
        assert self._give_up is not None  # it asked
        self._give_up.cancel()
        query, self._query, self._unread = self._query, None, b""
        self.num_failed += failed
        if not self.transport.is_closing():
            self._free.append(self)
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(query, 0, 0)])


class LoadGen:
    """LoadGen in front of one server. It loses no query: a failed one is complete, and counted."""

    def __init__(self, port: str, file: str) -> None:
        self.versions = {"mlcommons-loadgen": metadata.version("mlcommons-loadgen")}
        self._port, self._request = int(port), Path(file).read_bytes()
        self._free: list[Connection] = []
        self._all: list[Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = uvloop.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def offer(self, per_s: float, seconds: float) -> dict[str, float]:
        """{p50_ms, p99_ms, per_s (completed), num_failed} of arrivals at random, ``per_s`` on average."""
        settings = loadgen.TestSettings()
        settings.scenario, settings.mode = loadgen.TestScenario.Server, loadgen.TestMode.PerformanceOnly
        settings.server_target_qps = per_s
        settings.server_target_latency_ns = 100_000_000
        settings.server_target_latency_percentile = 0.99
        settings.min_duration_ms = int(seconds * 1000)
        settings.min_query_count = math.ceil(per_s * seconds)
        failed_before = sum(connection.num_failed for connection in self._all)
        with tempfile.TemporaryDirectory() as directory:
            logs = loadgen.LogSettings()
            logs.log_output.outdir = directory
            asked = loadgen.ConstructSUT(self._issue, lambda: None)
            library = loadgen.ConstructQSL(1, 1, lambda _: None, lambda _: None)
            loadgen.StartTestWithLogSettings(asked, library, settings, logs, "")
            loadgen.DestroyQSL(library)
            loadgen.DestroySUT(asked)
            summary = (Path(directory) / "mlperf_log_summary.txt").read_text()
        p50_ns, p99_ns = (_number(summary, f"{percentile} percentile latency (ns)") for percentile in PERCENTILES)
        return {
            "p50_ms": p50_ns / 1e6,
            "p99_ms": p99_ns / 1e6,
            "per_s": _number(summary, "Completed samples per second"),
            "num_failed": sum(connection.num_failed for connection in self._all) - failed_before,
        }

    def _issue(self, queries: Any) -> None:
        self._loop.call_soon_threadsafe(self._ask_all, [query.id for query in queries])

    def _ask_all(self, queries: list[int]) -> None:
        for query in queries:
            if self._free:
                self._free.pop().ask(self._request, query)
            else:
                task = self._loop.create_task(self._connect_and_ask(query))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _connect_and_ask(self, query: int) -> None:
        _, connection = await self._loop.create_connection(lambda: Connection(self._free), "127.0.0.1", self._port)
        self._all.append(connection)
        connection.ask(self._request, query)


def _number(summary: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)}\s*:\s*([\d.]+)", summary, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"LoadGen's summary lacks {name!r}: {summary}")
    return float(found[1])


if __name__ == "__main__":
    serve(LoadGen)
