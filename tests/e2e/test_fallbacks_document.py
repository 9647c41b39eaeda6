"""docs/fallbacks-and-variants.md: its configuration serves, its commands are typed, its tables have every key."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from proxy.config_models import ModelRoute, ModelTarget, When
from proxy.config_variants import Config, Outcomes, Stop, Variant
from proxy.llm.hold import DECLINES, MAX_BYTES, MAX_EVENTS
from proxy.model_routes import MAX_TARGETS
from tests.documents import ROOT, blocks
from tests.e2e.appliance import HEADRACE, Appliance

DOCUMENT = "docs/fallbacks-and-variants.md"
TEXT = (ROOT / DOCUMENT).read_text()
ANSWER = b'{"choices": [{"message": {"role": "assistant", "content": "Hi!"}}]}'


def test_every_key_is_described() -> None:
    for heading, table in {
        "key of `model_routes: {NAME: ...}`": ModelRoute,
        "key of `variants`": Config,
        "key of `stop`": Stop,
    }.items():
        rows = TEXT.partition(f"| {heading} |")[2].partition("\n\n")[0]
        assert re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE) == list(table.model_fields)
    words = set(re.findall(r"`(\w+)`", TEXT))
    for table in (ModelTarget, When, Variant, Outcomes):
        assert set(table.model_fields) <= words


def test_its_numbers_are_the_real_ones() -> None:
    declined = TEXT.partition("or it answers ")[2].partition(";")[0]
    assert set(map(int, re.findall(r"\d+", declined))) == DECLINES
    assert f"{MAX_EVENTS} events and {MAX_BYTES >> 10} KiB" in TEXT
    assert (MAX_TARGETS, "At most eight are asked" in TEXT) == (8, True)


class _Upstream(BaseHTTPRequestHandler):
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
def upstream() -> Iterator[int]:
    """The port of an upstream that answers every chat request."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Upstream) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_its_commands_do_what_it_says(tmp_path: Path, upstream: int) -> None:
    keys, asking, trying = blocks(DOCUMENT, "sh")
    [configured] = blocks(DOCUMENT, "yaml")
    fields, shown = blocks(DOCUMENT, "text")
    (tmp_path / "box").mkdir()
    for name in ("cloud.key", "cloud-spare.key"):
        (tmp_path / name).write_text("sk-1234\n")
    box = Appliance(tmp_path / "box", "", tmp_path)
    here = {
        "/etc/headrace/headrace.yaml": str(box.file),
        "/etc/headrace/tls": str(box.tls),
        "/etc/headrace": str(tmp_path),
        "10.0.0.7:8000": f"127.0.0.1:{upstream}",
        "https://api.example.com": f"http://localhost:{upstream}",
        "127.0.0.1:8443": f"127.0.0.1:{box.port}",
        "localhost:8443": f"localhost:{box.port}",
    }

    def real(text: str) -> str:
        for written, there in here.items():
            text = text.replace(written, there)
        return text

    def typed(script: str) -> str:
        script = f'set -eo pipefail\nheadrace() {{ {shlex.join(HEADRACE)} "$@"; }}\n{real(script)}'
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, (script, done.stdout, done.stderr)
        return done.stdout

    (tmp_path / "keys.yaml").write_text("keys: []\n")
    box.write(real(configured).replace("{", "{{").replace("}", "}}"))
    box.start()
    try:
        typed(keys)
        said = typed(asking)
        assert re.findall(r"^headrace-(?:model|upstream): \w+", said, re.MULTILINE) == fields.splitlines()
        assert said.lower().count("cache-control: private, no-store") == 2
        said = typed(trying)
        given = re.findall(r"(\d+) headrace-variant: (\w+)", said)
        assert {name for _, name in given} == {"control", "tuned"}
        assert sum(int(num) for num, _ in given) == 40
        heading, columns, *rows = said[said.rindex("route chat") :].splitlines()
        wanted = shown.splitlines()
        assert [heading, columns.split()] == [wanted[0], wanted[1].split()]
        assert [row.split()[:2] for row in rows] == [row.split()[:2] for row in wanted[2:]]
        assert (
            sum(int(row.split()[2]) for row in rows) == 43
        )  # the two of the fallback, forty, and the one of the token
        assert sum("100.00%" in row.split()[5:] for row in rows) == 1  # the outcome
    finally:
        box.stop()
