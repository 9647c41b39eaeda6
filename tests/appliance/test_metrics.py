"""The metrics page, read back by the client library's own parser."""

from __future__ import annotations

import os

from prometheus_client.parser import text_string_to_metric_families

from appliance import metrics
from appliance.post import Post, State
from appliance.reload_queue import ReloadQueue
from appliance.statistics import Statistics
from proxy.cells import MAPPING_BYTES, Cells

POSTS = (
    Post("proxy-1", "proxy", state=State.SERVING, num_restarts=3),
    Post("engine-1", "engine", 1, state=State.STARTING),
)
FAULTY = Statistics("serving", ("engine-1 is starting",), 4, 1, ReloadQueue(num_ok=2, num_failed=1), POSTS)


def samples(page: bytes) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_the_supervisors_own() -> None:
    found = samples(metrics.render("1.2", FAULTY, {"proxy-1": os.getpid()}, [], None))
    assert found["headrace_build_info", "1.2"] == 1
    assert found["headrace_up",] == 0
    assert found["headrace_config_revision",] == 4
    assert found["headrace_config_reloads_total",] == 2
    assert found["headrace_config_reload_failures_total",] == 1
    assert found["headrace_config_last_reload_ok",] == 1
    assert found["headrace_child_up", "proxy-1"] == 1
    assert found["headrace_child_up", "engine-1"] == 0
    assert found["headrace_child_restarts_total", "proxy-1"] == 3
    assert found["headrace_child_resident_bytes", "proxy-1"] > 1e6
    assert found["headrace_engine_scraped",] == 0


def test_the_workers_are_summed_and_the_engines_page_is_passed_on() -> None:
    mappings = [bytearray(MAPPING_BYTES) for _ in range(2)]
    for count, mapping in enumerate(mappings, start=1):
        Cells(mapping).counter("headrace_tries_total", "Tries.").add(count)
    found = samples(metrics.render("1.2", FAULTY, {}, mappings, b"engine_steps_total 5\n"))
    assert found["headrace_tries_total",] == 3
    assert found["engine_steps_total",] == 5
    assert found["headrace_engine_scraped",] == 1


def test_a_process_that_is_gone_has_no_memory() -> None:
    assert metrics.resident_bytes(2**22 + 1) is None
