"""Cells as two workers write them and the supervisor reads them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import CollectorRegistry

from proxy.cells import DROPPED, MAPPING_BYTES, Buffer, Cells, collect, reset_gauges


@pytest.fixture
def mapping() -> mmap.mmap:
    return mmap.mmap(-1, MAPPING_BYTES)


def samples(*buffers: Buffer) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in collect(buffers)
        for sample in family.samples
    }


def exposition(*buffers: Buffer) -> str:
    class Collector:
        def collect(self) -> Iterator[object]:
            return collect(buffers)

    registry = CollectorRegistry()
    registry.register(Collector())
    return generate_latest(registry).decode()


def test_counters_of_all_workers_are_summed_by_labels() -> None:
    one, two = bytearray(1 << 16), bytearray(1 << 16)
    for buffer, count in ((one, 3), (two, 4)):
        cells = Cells(buffer)
        cells.counter("requests_total", "d", {"route": "a"}).add(count)
        cells.counter("requests_total", "d", {"route": "b"}).add()
    found = samples(one, two)
    assert found["requests_total", (("route", "a"),)] == 7
    assert found["requests_total", (("route", "b"),)] == 2


def test_gauges_combine_as_declared() -> None:
    one, two = bytearray(1 << 16), bytearray(1 << 16)
    for buffer, value in ((one, 2.0), (two, 5.0)):
        cells = Cells(buffer)
        cells.gauge("open", "d").set(value)
        cells.gauge("lag_seconds", "d", combine="max").set(value)
    assert samples(one, two)["open", ()] == 7.0
    assert samples(one, two)["lag_seconds", ()] == 5.0


def test_a_histogram_is_cumulative_and_a_bound_is_inclusive() -> None:
    one, two = bytearray(1 << 16), bytearray(1 << 16)
    for buffer, values in ((one, (0.1, 0.2)), (two, (0.5, 9.0))):
        histogram = Cells(buffer).histogram("seconds", "d", {"route": "a"}, bounds=(0.1, 1.0))
        for value in values:
            histogram.observe(value)
    found = samples(one, two)
    counts = [found["seconds_bucket", (("le", le), ("route", "a"))] for le in ("0.1", "1.0", "+Inf")]
    assert counts == [1.0, 3.0, 4.0]
    assert found["seconds_count", (("route", "a"),)] == 4.0
    assert found["seconds_sum", (("route", "a"),)] == pytest.approx(9.8)


def test_prometheus_can_write_it_out() -> None:
    buffer = bytearray(1 << 16)
    cells = Cells(buffer)
    cells.counter("requests_total", "Requests.", {"route": 'a"b\n'}).add(2)
    cells.histogram("seconds", "Time.", bounds=(1.0,)).observe(0.5)
    text = exposition(buffer)
    assert '# TYPE requests_total counter\nrequests_total{route="a\\"b\\n"} 2.0' in text
    assert 'seconds_bucket{le="+Inf"} 1.0' in text


def test_asked_again_it_is_the_same_cell() -> None:
    cells = Cells()
    cells.counter("c_total", "d", {"a": "1", "b": "2"}).add()
    assert cells.counter("c_total", "d", {"b": "2", "a": "1"}).value == 1.0


def test_K04_a_restarted_worker_counts_on_and_its_gauges_begin_at_zero(mapping: mmap.mmap) -> None:
    other = bytearray(1 << 16)
    Cells(other).counter("requests_total", "d").add(10)
    seen = []
    for _ in range(3):
        cells = Cells(mapping)
        requests, flying = cells.counter("requests_total", "d"), cells.gauge("open", "d")
        assert flying.value == 0.0
        flying.add(4)
        for _ in range(5):
            requests.add()
            seen.append(samples(mapping, other)["requests_total", ()])
        reset_gauges(mapping)
        assert samples(mapping, other)["open", ()] == 0.0
        del cells, requests, flying
        seen.append(samples(mapping, other)["requests_total", ()])
    assert seen == sorted(seen)
    assert seen[-1] == 25


def test_a_successor_does_not_believe_a_dead_workers_gauge() -> None:
    buffer = bytearray(1 << 16)
    Cells(buffer).gauge("open", "d").set(7)
    Cells(buffer)
    assert samples(buffer)["open", ()] == 0.0


def test_a_mapping_that_nobody_began_is_empty(mapping: mmap.mmap) -> None:
    assert samples(mapping) == {}
    reset_gauges(mapping)
    assert samples(mapping) == {}


def test_what_finds_no_room_is_counted_and_harms_nobody() -> None:
    buffer = bytearray(2048)
    cells = Cells(buffer)
    for i in range(100):
        cells.counter("c_total", "d" * 50, {"route": str(i)}).add()
    cells.histogram("h", "d" * 50, bounds=range(1, 200)).observe(500.0)
    found = samples(buffer)
    kept = [value for (name, _), value in found.items() if name == "c_total"]
    assert 0 < len(kept) < 100
    assert set(kept) == {1.0}
    assert found[DROPPED, ()] == 101 - len(kept)


def test_two_releases_with_different_shapes_side_by_side() -> None:
    old, new = bytearray(1 << 16), bytearray(1 << 16)
    Cells(old).histogram("seconds", "d", bounds=(1.0,)).observe(0.5)
    Cells(new).histogram("seconds", "d", bounds=(1.0, 2.0)).observe(0.5)
    assert samples(old, new)["seconds_count", ()] == 1.0
