"""The metrics of the whole box, as Prometheus text: the supervisor's own, the proxies' cells, the engine's page.

Owns the names of what the supervisor knows. The proxies' numbers are read from the shared mappings, the engine's page
is passed on as the engine writes it.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from appliance.statistics import Statistics
from proxy.cells import Buffer, collect

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_PAGE_BYTES = resource.getpagesize()


def render(
    version: str, statistics: Statistics, pids: Mapping[str, int], cells: Iterable[Buffer], engine_page: bytes | None
) -> bytes:
    """The page. pids: of the running children by name; engine_page: None if the engine has not given its own."""
    registry = CollectorRegistry()
    registry.register(_Box(version, statistics, pids, engine_page is not None))
    registry.register(_Proxies(cells))
    return generate_latest(registry) + (engine_page or b"")


class _Box(Collector):
    def __init__(self, version: str, statistics: Statistics, pids: Mapping[str, int], engine_scraped: bool) -> None:
        self._version = version
        self._statistics = statistics
        self._pids = pids
        self._engine_scraped = engine_scraped

    def collect(self) -> Iterator[Metric]:
        now = self._statistics
        build = GaugeMetricFamily("headrace_build_info", "The version that runs.", labels=["version"])
        build.add_metric([self._version], 1)
        yield build
        yield _gauge("headrace_up", "1 while the proxies and the engine serve.", not now.faults)
        yield _gauge("headrace_config_revision", "Number of the configuration in force.", now.revision)
        yield _gauge("headrace_engine_generation", "Number of the engine in force; 0: none.", now.generation)
        yield _gauge("headrace_engine_scraped", "1 if the engine's own metrics are on this page.", self._engine_scraped)
        yield _gauge("headrace_config_last_reload_ok", "0 after a refused reload.", not now.reloads.last_problems)
        yield _counter("headrace_config_reloads", "Reloads that were taken.", now.reloads.num_ok)
        yield _counter("headrace_config_reload_failures", "Reloads that were refused.", now.reloads.num_failed)
        up = GaugeMetricFamily("headrace_child_up", "1 while the child serves.", labels=["child"])
        restarts = CounterMetricFamily(
            "headrace_child_restarts", "How often the child ended unasked and was started again.", labels=["child"]
        )
        resident = GaugeMetricFamily("headrace_child_resident_bytes", "Memory of the child.", labels=["child"])
        for post in now.posts:
            up.add_metric([post.name], post.serves)
            restarts.add_metric([post.name], post.num_restarts)
        for name, pid in self._pids.items():
            if size_bytes := resident_bytes(pid):
                resident.add_metric([name], size_bytes)
        yield from (up, restarts, resident)


class _Proxies(Collector):
    def __init__(self, cells: Iterable[Buffer]) -> None:
        self._cells = cells

    def collect(self) -> Iterator[Metric]:
        yield from collect(self._cells)


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process; None once it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return None


def _gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(name, doc, value=value)


def _counter(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(name, doc, value=value)
