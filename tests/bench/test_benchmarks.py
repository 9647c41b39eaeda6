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
    "proxy": {"small_get_vs_plain", "chain_us"},
    "streams": {"stall_free_512"},
    "llm": {"one_stream_vs_bare", "eight_streams_vs_bare", "eight_vs_one", "ttft_p99_ms_busy", "engine_memory_mib"},
    "batching": {"batched_vs_bare", "batched_vs_one_client"},
}


def test_the_document_names_every_benchmark() -> None:
    assert commands("bench/README.md") == [f".venv/bin/python bench/{name}.py --quick" for name in RATIOS]


@pytest.mark.slow
@pytest.mark.parametrize("name", RATIOS)
def test_a_benchmark_prints_a_table_and_writes_its_document(name: str, models: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    command = [sys.executable, f"bench/{name}.py", "--quick", "--rounds", "1", "--json", str(file)]
    environment = {**os.environ, "HEADRACE_MODELS": str(models)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert {"machine", "versions", "method", "rows", "ratios"} <= set(document)
    assert RATIOS[name] <= set(document["ratios"])
    assert all(isinstance(number, int | float) for number in document["ratios"].values())
    for row in document["rows"]:
        assert str(next(iter(row.values()))) in done.stdout
