"""docs/limits-and-budgets.md: its configuration serves, its commands are typed, its tables have every key."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from proxy.config import Limit
from proxy.config_budgets import Budget, Usage
from proxy.policy import tokens
from proxy.usage_report import BY, report
from tests.documents import ROOT, blocks
from tests.e2e.appliance import HEADRACE, Appliance, wait_for

DOCUMENT = "docs/limits-and-budgets.md"
TEXT = (ROOT / DOCUMENT).read_text()
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
ANSWER = json.dumps({"choices": [{"message": {"role": "assistant", "content": "Hi!"}}], "usage": USAGE}).encode()


def test_every_key_is_described() -> None:
    for heading, table in {
        "Limits": Limit,
        "Tokens": tokens.Config,
        "Budgets": Budget,
        "Who has used what": Usage,
    }.items():
        section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(table.model_fields)
    assert set(BY) <= set(re.findall(r"\w+", TEXT.partition("It may be added up by")[2].partition("`estimated`")[0]))


class _Gpu(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def gpu() -> Iterator[int]:
    """The port of an upstream that answers every chat request."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Gpu) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def _num_recorded(file: Path) -> int:
    return len(report(file, ["key"], 0.0, 1e11)) if file.exists() else 0


def test_its_commands_do_what_it_says(tmp_path: Path, gpu: int) -> None:
    keys, checking, asking, repeating = blocks(DOCUMENT, "sh")
    [configured] = blocks(DOCUMENT, "yaml")
    refused, shown = blocks(DOCUMENT, "text")
    (tmp_path / "box").mkdir()
    box = Appliance(tmp_path / "box", "", tmp_path)
    here = {
        "/etc/headrace/keys.yaml": str(tmp_path / "keys.yaml"),
        "/etc/headrace/headrace.yaml": str(box.file),
        "/etc/headrace/tls": str(box.tls),
        "/var/lib/headrace": str(tmp_path),
        "10.0.0.7:8000": f"127.0.0.1:{gpu}",
        "127.0.0.1:8443": f"127.0.0.1:{box.port}",
        "localhost:8443": f"localhost:{box.port}",
    }

    def typed(script: str) -> str:
        for written, real in here.items():
            script = script.replace(written, real)
        script = f'set -eo pipefail\nheadrace() {{ {shlex.join(HEADRACE)} "$@"; }}\n{script}'
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, (script, done.stdout, done.stderr)
        return done.stdout

    assert "ann  created" in typed(keys)
    for written, real in here.items():
        configured = configured.replace(written, real)
    box.write(configured.replace("{", "{{").replace("}", "}}"))
    box.start()
    try:
        typed(checking)
        using, _, showing = asking.partition("sleep 2\n")
        said = typed(using)
        wait_for(lambda: _num_recorded(tmp_path / "usage.db"), "the request to be recorded")
        said += "\n" + typed(showing)
        fields = re.findall(r"^(ratelimit(?:-policy)?): (.*)\r?$", said, re.MULTILINE | re.IGNORECASE)
        assert '"monthly.tokens";q=5000000;w=' in " ".join(value for _, value in fields)
        for line in shown.splitlines():
            assert re.search(r"\s+".join(map(re.escape, line.split())), said), said
        assert "acme/search" in said
        lines = (tmp_path / "usage.csv").read_text().splitlines()
        assert [row["tenant"] for row in csv.DictReader(lines)] == ["acme"]
        assert json.loads(said[said.rindex("[\n") :])[0] | {"status": 200, "requests": 1} == {
            "status": 200, "requests": 1, "prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 0,
            "total_tokens": 13, "estimated": 0,
        }  # fmt: skip
        again = typed(repeating)
        assert "idempotent-replayed: true" in again.lower()
        assert json.loads((tmp_path / "first.json").read_bytes())["usage"] == USAGE
        assert json.loads(refused.partition("\n\n")[2])["error"]["code"] == "insufficient_quota"
    finally:
        box.stop()
