"""docs/long-prompts.md: its configuration serves, its commands are typed, its tables have every key."""

from __future__ import annotations

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

from proxy.llm.fitting import Truncate, Window
from proxy.llm.summaries import Summaries
from proxy.policy.context_guard import Config
from tests.documents import ROOT, blocks
from tests.e2e.appliance import HEADRACE, Appliance

DOCUMENT = "docs/long-prompts.md"
TEXT = (ROOT / DOCUMENT).read_text()
ANSWER = b'{"choices": [{"message": {"role": "assistant", "content": "Hi!"}}]}'


@pytest.mark.parametrize(
    ("heading", "table"),
    [("context_guard", Config), ("truncate", Truncate), ("window", Window), ("summaries", Summaries)],
)
def test_every_key_is_described(heading: str, table: type[Config | Truncate | Window | Summaries]) -> None:
    rows = TEXT.partition(f"| key of `{heading}` |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE) == list(table.model_fields)


class _Upstream(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[str]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body["messages"][-1]["content"])
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def upstream() -> Iterator[int]:
    """The port of an upstream that answers every chat request, and remembers what it was asked last."""
    _Upstream.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Upstream) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_its_commands_do_what_it_says(tmp_path: Path, upstream: int) -> None:
    [asking] = blocks(DOCUMENT, "sh")
    [configured] = blocks(DOCUMENT, "yaml")
    [fields] = blocks(DOCUMENT, "text")
    (tmp_path / "box").mkdir()
    box = Appliance(tmp_path / "box", "", tmp_path)
    here = {
        "/etc/headrace/headrace.yaml": str(box.file),
        "/etc/headrace/tls": str(box.tls),
        "10.0.0.7:8000": f"127.0.0.1:{upstream}",
        "127.0.0.1:8443": f"127.0.0.1:{box.port}",
        "localhost:8443": f"localhost:{box.port}",
    }

    def real(text: str) -> str:
        for written, there in here.items():
            text = text.replace(written, there)
        return text

    box.write(real(configured).replace("{", "{{").replace("}", "}}"))
    box.start()
    try:
        script = f'set -eo pipefail\nheadrace() {{ {shlex.join(HEADRACE)} "$@"; }}\n{real(asking)}'
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert re.findall(r"^(headrace-[a-z-]+):", done.stdout, re.MULTILINE) == fields.split()
        assert "[\u2026]" in _Upstream.asked[0]
        assert _Upstream.asked[-1].startswith("[Summary of part 1 of ")
        assert 5 <= len(_Upstream.asked) <= 10
    finally:
        box.stop()
