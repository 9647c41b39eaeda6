"""docs/serve-your-own-model.md, followed from its first line to its last: what it makes, types, writes and shows."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine.tensor_facts import AdapterFacts, ClassifyFacts, ImageFacts, TextFacts
from tests.documents import ROOT, blocks
from tests.e2e.appliance import HEADRACE, Appliance

DOCUMENT = "docs/serve-your-own-model.md"
TEXT = (ROOT / DOCUMENT).read_text()
EDGE = """
listeners:
  - address: 127.0.0.1:{port}
    tls: {{certificates: [{{cert: {tls}/localhost.pem, key: {tls}/localhost.key}}]}}
routes: [{{match: {{path: /*}}, to: engine}}]
"""


def test_every_key_of_the_adapters_is_described() -> None:
    described = {
        key for row in re.findall(r"^\| (`[^|]+) \|", TEXT, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)
    }
    assert {*ImageFacts.model_fields, *TextFacts.model_fields} <= described
    assert {*AdapterFacts.model_fields} == set(re.findall(r"^\| `adapter\.(\w+)` \|", TEXT, re.MULTILINE))
    for key in ClassifyFacts.model_fields:
        assert f"`{key}`" in TEXT


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the reader works: a red picture, and the tensor of a green one."""
    Image.new("RGB", (40, 30), (250, 20, 10)).save(tmp_path / "picture.png")
    green = np.zeros((1, 3, 8, 8))
    green[:, 1] = 0.5
    tensor = {"name": "pixels", "datatype": "FP32", "shape": [1, 3, 8, 8], "data": green.flatten().tolist()}
    (tmp_path / "tensor.json").write_text(json.dumps({"inputs": [tensor]}))
    return tmp_path


def test_it_leads_from_a_graph_to_answers(place: Path, models: Path) -> None:
    (python,) = blocks(DOCUMENT, "python")
    importing, asking, loading = blocks(DOCUMENT, "sh")
    configured, added = blocks(DOCUMENT, "yaml")
    (said,) = blocks(DOCUMENT, "text")
    store = place / "models"
    subprocess.run([sys.executable, "-c", python], cwd=place, check=True)
    printed = _type(importing, place, {"/var/lib/headrace/models": str(store)})
    assert said in printed
    here = configured.replace("/var/lib/headrace/models", str(store))
    (place / "box").mkdir()
    box = Appliance(place / "box", EDGE + here.replace("{", "{{").replace("}", "}}"), models).start()
    try:
        real = {
            "/etc/headrace/headrace.yaml": str(box.file),
            "/etc/headrace/tls/ca.pem": str(box.tls / "ca.pem"),
            "localhost:8443": f"localhost:{box.port}",
        }
        metadata, _, answer = _type(asking, place, real).splitlines()[-3:]
        assert json.loads(metadata)["inputs"] == [{"name": "pixels", "datatype": "FP32", "shape": [-1, 3, 8, 8]}]
        assert json.loads(answer)["outputs"][0]["data"] == [0, 0.5, 0]
        manifest = store / "colours" / "model.yaml"
        manifest.write_text(manifest.read_text() + added)
        printed = _type(loading, place, real)
        [classified] = re.findall(r'\{"object":"list".*\}', printed.replace('": ', '":'))
        [item] = json.loads(classified)["data"]
        assert item["label"] == "red"
        assert len(item["classes"]) == 2
        assert item["score"] == pytest.approx(1 / (1 + np.exp((20 - 250) / 255) + np.exp((10 - 250) / 255)), abs=1e-3)
    finally:
        assert box.stop() == 0, box.log


def _type(commands: str, directory: Path, real: dict[str, str]) -> str:
    """Everything that the commands print, each on a line of its own."""
    printed = ""
    for command in commands.splitlines():
        typed = re.sub("^headrace ", f"{shlex.join(HEADRACE)} ", command)
        typed = typed.replace("curl ", "curl --fail-with-body -sS ")
        for written, there in real.items():
            typed = typed.replace(written, there)
        done = subprocess.run(typed, shell=True, cwd=directory, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (typed, done.stdout, done.stderr)
        printed += done.stdout.rstrip("\n") + done.stderr + "\n"
    return printed
