"""Every benchmark runs, prints its table and writes its document. Figures are not judged here: machines are shared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT, commands

RATIOS = {
    "proxy": {"small_get_vs_plain", "get_64k_vs_plain", "download_vs_plain", "chain_us"},
    "streams": {"stall_free_512", "stall_free_1000"},
    "idle": {"idle_kib", "idle_tls_kib", "slow_reader_kib", "slow_reader_tls_kib", "slow_upload_kib"},
    "storm": {"storm_extra_load"},
    "trim": {"first_byte_ms_untrimmed", "first_byte_ms_trimmed", "first_byte_trimmed_vs_untrimmed"},
    "policy": {"chain_us_per_request", "count_100k_delay_ms", "table_decisions_per_s", "admitted_minus_quota"},
    "slow": {"slow_probe_failures"},
    "soak": {"rss_slope_kib_per_min", "rss_slope_error_kib_per_min", "soak_failures"},
    "llm": {"host_gap_share", "one_stream_vs_bare", "eight_streams_vs_bare", "ttft_p99_ms_busy", "engine_memory_mib"},
    "arrivals": {
        "poisson_ttft_p99_ms",
        "poisson_tpot_p99_ms",
        "longest_gap_vs_step_and_max_stall",
        "short_ttft_gain",
        "prefix_ttft_gain",
    },
    "host_work": {"greedy_device_host_ms", "sampled_device_host_ms", "greedy_loop_ms", "idle_slots_cost"},
    "loading": {"ready_s", "load_peak_vs_steady"},
    "lookup": {"lookup_gain_quoting", "lookup_gain_chat"},
    "llm_soak": {"llm_rss_slope_kib_per_min", "left_inside", "llm_soak_failures"},
    "batching": {"embed_vs_bare", "adaptive_vs_rate", "batching_gain_of_bare", "engine_memory_mib"},
    "classify": {"classify_vs_bare", "classify_one_p50_ms"},
    "tensors": {"added_p50_ms", "identity_vs_echo", "binary_vs_raw_copy", "binary_vs_json"},
    "preprocess": {
        "preprocess_vs_pillow",
        "image_end_to_end_vs_pillow",
        "multimodal_preprocess_gain",
        "multimodal_end_to_end_gain",
        "same_top_1",
    },
    "shapes": {"shapes_glibc_kib_per_1000_requests", "shapes_glibc_failures"},
}
MODEL = (
    "llm",
    "arrivals",
    "host_work",
    "loading",
    "lookup",
    "llm_soak",
    "batching",
    "classify",
    "preprocess",
    "shapes",
)
EDGE = [name for name in RATIOS if name not in MODEL]


def test_the_document_names_every_benchmark() -> None:
    assert commands("bench/README.md") == [f".venv/bin/python bench/{name}.py --quick" for name in RATIOS]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODEL)
def test_a_benchmark_of_a_model_prints_a_table_and_writes_its_document(name: str, models: Path, tmp_path: Path) -> None:
    run(name, tmp_path, "--smoke", HEADRACE_MODELS=str(models), HEADRACE_PEERS=str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", EDGE)
def test_a_benchmark_of_the_edge_prints_a_table_and_writes_its_document(name: str, tmp_path: Path) -> None:
    run(name, tmp_path, "--smoke")


@pytest.mark.slow
def test_streams_over_tls_have_ratios_of_their_own(tmp_path: Path) -> None:
    run("streams", tmp_path, "--smoke", "--tls", ratios={"stall_free_1000_tls"})


def run(name: str, directory: Path, *flags: str, ratios: set[str] | None = None, **environment: str) -> None:
    """Runs a benchmark and looks at what it prints and writes."""
    file = directory / "result.json"
    command = [sys.executable, f"bench/{name}.py", *flags, "--json", str(file)]
    env = {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=550)
    if name == "slow" and "slowhttptest is not installed" in done.stderr:
        return  # nothing is compared without it
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert {"machine", "versions", "method", "rows", "ratios"} <= set(document)
    assert (ratios or RATIOS[name]) <= set(document["ratios"])
    assert all(isinstance(number, int | float) for number in document["ratios"].values())
    for row in document["rows"]:
        assert str(next(iter(row.values()))) in done.stdout
