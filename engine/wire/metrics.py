"""``GET /metrics``: the engine's numbers in Prometheus' text format, read when they are asked for.

Nothing is counted on the way of a token: a collector reads the statistics that the models keep anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.batching.lane import BatchLane
from engine.http.message import Request, Response
from engine.http.router import Route, get
from engine.serving import Serving

#: What the page says of statistics whose names do not say it.
OF_CHAT = {
    "kv_budget_bytes": "What keys and values of a model's texts may take of the memory",
    "kv_bytes": "What the keys and values of its texts take of the memory",
    "kv_waste_ratio": "Part of the budget that is taken, but not by texts worked on: kept for others, or left over",
    "kv_fragmentation_ratio": "Part of what is taken that no token fills: the ends of pages, and what was taken back",
    "kv_compactions_total": "Times that idle time gave back doubles and leftovers, since more than 35 % were wasted",
    "kv_evictions_total": "Kept texts that were forgotten before their time, for want of room or above 60 % of waste",
    "prefixes": "Texts that are kept for prompts that begin like them",
    "prefix_hits_total": "Prompts whose beginning was not read, since a slot held it",
    "prefix_copies_total": "Those of them that were given a copy of it",
    "prefix_tokens_total": "Tokens of prompts that were not read for that",
    "preempted_total": "Answers sent back to wait for want of memory",
    "parked_out_total": "Answers sent back to wait since their readers are slow",
    "late_total": "Requests that missed their deadline, or could not meet it",
    "bad_rows_total": "Answers that ended since the model gave no finite probabilities",
}
OF_BATCHES = {
    "batch_requests_total": "Requests answered by runs that they share",
    "batch_failed_total": "Requests that ended with an error of their run, or of their waiting",
    "batch_overdue_total": "Those of them that waited beyond their deadline, or the timeout of their level",
    "batch_rows_total": "Rows that were run",
    "batch_queue_seconds_total": "Of items, from the arrival of their request to their run",
    "batch_run_seconds_total": "Inside runs",
    "batch_held_seconds_total": "That the device was free, and what waited was kept for company",
    "batch_ahead_total": "Runs whose batch was made ready during the run before",
    "batch_misfit_small_windows": "1: windows close with one or two rows; docs/batching.md says what to do",
    "batch_misfit_spikes": "1: gaps alternate with spikes; docs/batching.md says what to do",
    "slo_broken_by_waiting_total": "Requests that missed the slo and would not have without waiting for company",
    "slo_window_shut": "1: for that the window is zero at present",
}
_MEANINGS = {**OF_CHAT, **OF_BATCHES}


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
            meaning = _MEANINGS.get(name, name.replace("_", " "))
            family = kind(f"headrace_engine_{name}", meaning, labels=["model"])
            for model_name, value in values.items():
                family.add_metric([model_name], value)
            yield family
        yield from self._batches()
        device = self._serving.device
        yield CounterMetricFamily("headrace_engine_steps_total", "Runs of the device", value=device.num_steps)
        run_s, host_s = device.occupancy.run_s, device.occupancy.host_s
        yield CounterMetricFamily("headrace_engine_device_run_seconds_total", "Inside runs", value=run_s)
        yield CounterMetricFamily("headrace_engine_device_host_seconds_total", "Outside, work waiting", value=host_s)
        pool = self._serving.pool
        inside, done = "Images and texts that are read or wait for it", "Images and texts that were read"
        yield GaugeMetricFamily("headrace_engine_prepare_inside", inside, value=pool.num_inside)
        yield CounterMetricFamily("headrace_engine_prepared_total", done, value=pool.num_done)
        yield CounterMetricFamily("headrace_engine_prepare_seconds_total", "Of threads, at it", value=pool.busy_s)

    def _batches(self) -> Iterator[Metric]:
        """How many runs had how many rows, and what they took."""
        labels = ["model", "rows"]
        counts = CounterMetricFamily("headrace_engine_batches_total", "Runs, by their rows at most", labels=labels)
        seconds = CounterMetricFamily("headrace_engine_batch_seconds_total", "Inside these runs", labels=labels)
        for name, model in self._serving.fleet.loaded.items():
            if isinstance(model.lane, BatchLane):
                for rows, runs in sorted(model.lane.tally.by_rows.copy().items()):
                    counts.add_metric([name, str(rows)], runs.count)
                    seconds.add_metric([name, str(rows)], runs.seconds)
        yield counts
        yield seconds


def routes(serving: Serving) -> list[Route]:
    """This module's part of the server."""
    registry = CollectorRegistry()
    registry.register(ServingCollector(serving))

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), CONTENT_TYPE_LATEST)

    return [get("/metrics", metrics)]
