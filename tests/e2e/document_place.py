"""Where the commands of a document about the edge are typed: a box of its configuration, before a small upstream."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.documents import ROOT
from tests.e2e.appliance import HEADRACE, Appliance

HI: dict[str, Any] = {"choices": [{"message": {"role": "assistant", "content": "Hi!"}}]}


@contextmanager
def chat_upstream(answer: Mapping[str, Any] = HI) -> Iterator[tuple[int, list[str]]]:
    """An upstream that answers every chat request with this: its port, and the last messages that it was sent."""
    asked: list[str] = []
    body = json.dumps(answer).encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(request["messages"][-1]["content"])
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port, asked
        server.shutdown()
        thread.join()


class DocumentPlace:
    """A box in ``tmp_path``, and what stands here for the places that the document names: ``here`` may be added to."""

    def __init__(self, tmp_path: Path, upstream: int) -> None:
        (tmp_path / "box").mkdir()
        self.path = tmp_path
        self.box = Appliance(tmp_path / "box", "", tmp_path)
        self.here = {
            "/etc/headrace/headrace.yaml": str(self.box.file),
            "/etc/headrace/tls": str(self.box.tls),
            "/etc/headrace": str(tmp_path),
            "/var/lib/headrace": str(tmp_path),
            "10.0.0.7:8000": f"127.0.0.1:{upstream}",
            "127.0.0.1:8443": f"127.0.0.1:{self.box.port}",
            "localhost:8443": f"localhost:{self.box.port}",
        }

    def configure(self, text: str) -> None:
        """Write the document's configuration."""
        self.box.write(self._real(text).replace("{", "{{").replace("}", "}}"))

    def type(self, script: str) -> str:
        """What the commands print; all of them succeed."""
        script = f'set -eo pipefail\nheadrace() {{ {shlex.join(HEADRACE)} "$@"; }}\n{self._real(script)}'
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, (script, done.stdout, done.stderr)
        return done.stdout

    def _real(self, text: str) -> str:
        for written, there in self.here.items():
            text = text.replace(written, there)
        return text
