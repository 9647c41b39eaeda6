"""``GET /metrics``: the engine's numbers in Prometheus' text format, read when they are asked for.

Nothing is counted on the way of a token: a collector reads the statistics that the models keep anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.serving import Serving


class ServingCollector(Collector):
    """The statistics of each model, labelled with its name, and those of the device."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def collect(self) -> Iterator[Metric]:
        """One family per statistic; those named ``*_total`` are counters."""
        rows: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for model_name, statistics in self._serving.fleet.statistics().items():
            for name, value in statistics.items():
                rows[name][model_name] = value
        for name, values in rows.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"headrace_engine_{name}", name.replace("_", " "), labels=["model"])
            for model_name, value in values.items():
                family.add_metric([model_name], value)
            yield family
        device = self._serving.device
        yield CounterMetricFamily("headrace_engine_steps_total", "Runs of the device", value=device.num_steps)
        run_s, host_s = device.occupancy.run_s, device.occupancy.host_s
        yield CounterMetricFamily("headrace_engine_device_run_seconds_total", "Inside runs", value=run_s)
        yield CounterMetricFamily("headrace_engine_device_host_seconds_total", "Outside, work waiting", value=host_s)


def routes(serving: Serving) -> list[web.RouteDef]:
    """This module's part of the server."""
    registry = CollectorRegistry()
    registry.register(ServingCollector(serving))

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return [web.get("/metrics", metrics)]
