"""Metrics as plain numbers in memory shared with the supervisor: one mapping per worker, no lock, no system call.

The mapping has a head, an array of doubles (the cells) and a directory that says which cells are which metric. A worker
resolves a metric once, when a snapshot is built, and then adds to its cell; the supervisor reads directory and cells of
all workers and combines them. A worker that takes over the mapping of a dead one finds its metrics in the directory and
counts on, so counters never go backwards; gauges start again at zero. Both areas are bounded: a metric that does not
fit is counted into nothing, and ``headrace_metrics_dropped_total`` says so. A directory entry is published by the last
write, the number of directory bytes, so a reader never sees half of one.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import orjson
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

MAPPING_BYTES: Final = 1 << 20
DROPPED: Final = "headrace_metrics_dropped_total"
#: Seconds, for request and stage times.
LATENCY_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_MAGIC: Final = int.from_bytes(b"HRCELLS1", "little")
_HEAD_WORDS: Final = 8  # magic, number of cells used, directory bytes used; the rest is reserved
_LENGTH: Final = struct.Struct("<I")

Buffer = Any  # whatever memoryview takes: mmap, bytearray, memoryview
Kind = Literal["counter", "gauge", "histogram"]
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Counter:
    """A number that only grows."""

    __slots__ = ("_at", "_cells")

    def __init__(self, cells: memoryview[float], at: int) -> None:
        self._cells = cells
        self._at = at

    def add(self, n: float = 1.0) -> None:
        """Add ``n``, which is not negative."""
        self._cells[self._at] += n

    @property
    def value(self) -> float:
        """This worker's own count."""
        return self._cells[self._at]


class Gauge(Counter):
    """A number that goes both ways."""

    __slots__ = ()

    def set(self, value: float) -> None:
        """Replace the number."""
        self._cells[self._at] = value


class Histogram:
    """How many observations fell below each bound: one cell per bound, one beyond the last, one for the sum."""

    __slots__ = ("_at", "_bounds", "_cells", "_sum")

    def __init__(self, cells: memoryview[float], at: int, bounds: tuple[float, ...]) -> None:
        self._cells = cells
        self._at = at
        self._bounds = bounds
        self._sum = at + len(bounds) + 1

    def observe(self, value: float) -> None:
        """Count one observation."""
        # Most of what is observed is shorter than the first bound.
        bounds = self._bounds
        self._cells[self._at if value <= bounds[0] else self._at + bisect_left(bounds, value)] += 1.0
        self._cells[self._sum] += value


class Cells:
    """One worker's end of a mapping: resolves metrics to their cells. Not thread-safe; one process writes a mapping."""

    def __init__(self, buffer: Buffer | None = None) -> None:
        """Begin an empty (zeroed) mapping, or continue one. None: private memory, for a worker that runs alone."""
        view = memoryview(bytearray(MAPPING_BYTES) if buffer is None else buffer)
        self._head, self._values, self._directory = _areas(view)
        self._known: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        if self._head[0] != _MAGIC:
            self._head[1] = self._head[2] = 0
            self._head[0] = _MAGIC
        for entry in _entries(self._head, self._directory):
            self._known[entry["name"], tuple(entry["labels"].items())] = entry["at"]
            if entry["kind"] == "gauge":
                self._values[entry["at"]] = 0.0
        self._dropped = self.counter(DROPPED, "Metrics that found no room in the shared mapping.")

    def counter(self, name: str, doc: str, labels: Mapping[str, str] | None = None) -> Counter:
        """The counter of this name and these labels; asked again, the same cells."""
        return Counter(*self._resolve("counter", name, doc, labels, 1, {}))

    def gauge(
        self, name: str, doc: str, labels: Mapping[str, str] | None = None, *, combine: Literal["sum", "max"] = "sum"
    ) -> Gauge:
        """A gauge; ``combine`` says what the box's number is, given the workers'."""
        return Gauge(*self._resolve("gauge", name, doc, labels, 1, {"combine": combine}))

    def histogram(
        self, name: str, doc: str, labels: Mapping[str, str] | None = None, *, bounds: Sequence[float] = LATENCY_BOUNDS
    ) -> Histogram:
        """A histogram with ascending upper ``bounds``, the same for every label set of a name."""
        kept = tuple(bounds)
        extra = {"bounds": kept}
        return Histogram(*self._resolve("histogram", name, doc, labels, len(kept) + 2, extra), kept)

    def _resolve(
        self, kind: Kind, name: str, doc: str, labels: Mapping[str, str] | None, size: int, extra: dict[str, Any]
    ) -> tuple[memoryview[float], int]:
        ordered = dict(sorted((labels or {}).items()))
        key = (name, tuple(ordered.items()))
        at = self._known.get(key)
        if at is not None:
            return self._values, at
        at = self._head[1]
        entry = orjson.dumps({"kind": kind, "name": name, "doc": doc, "labels": ordered, "at": at, **extra})
        used = self._head[2]
        end = used + _LENGTH.size + len(entry)
        if at + size > len(self._values) or end > len(self._directory):
            self._dropped.add()
            return memoryview(bytearray(8 * size)).cast("d"), 0
        self._directory[used:end] = _LENGTH.pack(len(entry)) + entry
        self._head[1] = at + size
        self._head[2] = end
        self._known[key] = at
        return self._values, at


def reset_gauges(buffer: Buffer) -> None:
    """Set the gauges of a dead worker to zero: nobody is in flight in it any more. Its counts stay."""
    head, values, directory = _areas(memoryview(buffer))
    for entry in _entries(head, directory):
        if entry["kind"] == "gauge":
            values[entry["at"]] = 0.0


def collect(buffers: Iterable[Buffer]) -> Iterator[Family]:
    """The Prometheus families of all workers together: counters and histograms summed, gauges as they were declared.

    A mapping that no worker has begun yet counts as empty.
    """
    merged: dict[str, dict[tuple[tuple[str, str], ...], list[float]]] = {}
    first: dict[str, dict[str, Any]] = {}
    for buffer in buffers:
        head, values, directory = _areas(memoryview(buffer))
        for entry in _entries(head, directory):
            name, at = entry["name"], entry["at"]
            known = first.setdefault(name, entry)
            if known["kind"] != entry["kind"] or known.get("bounds") != entry.get("bounds"):
                continue  # two releases side by side during an upgrade: the first one's shape stands
            size = len(entry["bounds"]) + 2 if "bounds" in entry else 1
            numbers = list(values[at : at + size])
            rows = merged.setdefault(name, {})
            labels = tuple(entry["labels"].items())
            before = rows.get(labels)
            if before is not None:
                combine = max if entry.get("combine") == "max" else float.__add__
                numbers = [combine(a, b) for a, b in zip(before, numbers, strict=True)]
            rows[labels] = numbers
    for name, rows in merged.items():
        yield _family(first[name], rows)


def _family(entry: dict[str, Any], rows: dict[tuple[tuple[str, str], ...], list[float]]) -> Family:
    name, doc, names = entry["name"], entry["doc"], list(entry["labels"])
    if entry["kind"] == "counter":
        counter = CounterMetricFamily(name, doc, labels=names)
        for labels, (value,) in rows.items():
            counter.add_metric([v for _, v in labels], value)
        return counter
    if entry["kind"] == "gauge":
        gauge = GaugeMetricFamily(name, doc, labels=names)
        for labels, (value,) in rows.items():
            gauge.add_metric([v for _, v in labels], value)
        return gauge
    histogram = HistogramMetricFamily(name, doc, labels=names)
    for labels, numbers in rows.items():
        running = 0.0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*entry["bounds"], float("inf")), numbers, strict=False):
            running += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), running))
        histogram.add_metric([v for _, v in labels], buckets, sum_value=numbers[-1])
    return histogram


def _areas(view: memoryview) -> tuple[memoryview[int], memoryview[float], memoryview]:
    """(head as words, cells as doubles, directory as bytes): half of the mapping each, after the head."""
    view = view.cast("B")
    begin = 8 * _HEAD_WORDS
    middle = begin + (len(view) - begin) // 2 // 8 * 8
    return view[:begin].cast("Q"), view[begin:middle].cast("d"), view[middle:]


def _entries(head: memoryview[int], directory: memoryview) -> Iterator[dict[str, Any]]:
    if head[0] != _MAGIC:
        return
    at, end = 0, head[2]
    while at < end:
        (size,) = _LENGTH.unpack_from(directory, at)
        at += _LENGTH.size
        yield orjson.loads(directory[at : at + size])
        at += size
