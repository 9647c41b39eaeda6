"""docs/batching.md: its configuration serves, its commands are typed, and what it says is to be seen is there."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from appliance.config.tables import Batching, Levels
from engine.batching.window import Trigger
from engine.wire.metrics import OF_BATCHES
from tests.documents import ROOT, blocks, commands
from tests.e2e.appliance import EMBEDDING, HEADRACE, Appliance, wait_for

DOCUMENT = "docs/batching.md"
TEXT = (ROOT / DOCUMENT).read_text()
EDGE = """
listeners:
  - address: "127.0.0.1:{port}"
    tls: {{certificates: [{{cert: {tls}/localhost.pem, key: {tls}/localhost.key}}]}}
routes: [{{match: {{path: /v1/*}}, to: engine}}]
"""


def test_every_key_number_and_trigger_is_described() -> None:
    keys = re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)
    assert set(keys) == set(Batching.model_fields)
    assert set(Levels.model_fields) <= set(re.findall(r"`(?:headrace-priority: )?(\w+)`", TEXT))
    assert set(get_args(Trigger)) <= set(re.findall(r"`(\w+)`", TEXT))
    for name in ("batch_held_seconds_total", "batch_misfit_small_windows", "batch_misfit_spikes", "slo_window_shut"):
        assert name in OF_BATCHES
        assert f"headrace_engine_{name}" in TEXT


@pytest.fixture
def box(tmp_path: Path, models: Path) -> Appliance:
    [configured] = blocks(DOCUMENT, "yaml")
    here = configured.replace(f"/var/lib/headrace/models/{EMBEDDING}", str(models / EMBEDDING))
    return Appliance(tmp_path, EDGE + here.replace("{", "{{").replace("}", "}}"), models)


def test_its_commands_do_what_it_says(box: Appliance) -> None:
    here = {
        "/etc/headrace/headrace.yaml": str(box.file),
        "/etc/headrace/tls": str(box.tls),
        "127.0.0.1:9180": f"127.0.0.1:{box.admin_port}",
        "127.0.0.1:8443": f"127.0.0.1:{box.port}",
    }
    box.start()
    try:
        for command in commands(DOCUMENT):
            typed = re.sub("^headrace (\\w+)", f"{shlex.join(HEADRACE)} \\1", command)
            for written, real in here.items():
                typed = typed.replace(written, real)
            done = subprocess.run(typed, shell=True, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, (typed, done.stdout, done.stderr)
        assert '"embedding"' in done.stdout
        metrics = wait_for(lambda: _with_a_run(box), "the run to be counted")
        for name in OF_BATCHES:
            assert f'headrace_engine_{name}{{model="embed"}}' in metrics
        line = re.search(r"model embed: (window_id=.*?skipped=\d+)", box.log)
        assert line is not None
        [shown] = blocks(DOCUMENT, "text")
        assert re.findall(r"\w+=", line[1]) == re.findall(r"\w+=", shown)
    finally:
        box.stop()


def _with_a_run(box: Appliance) -> str | None:
    page = box.metrics()
    return page if 'headrace_engine_batches_total{model="embed",rows="1"} 1.0' in page else None
