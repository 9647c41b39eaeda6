"""`headrace breaker` against a running appliance with several workers: one word is true for all of them."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from appliance.admin_client import call
from tests.e2e.appliance import TIMEOUT_S, Appliance, wait_for

EDGE = """
workers: 2
listeners:
  - address: 127.0.0.1:{{port}}
    tls: {{{{certificates: [{{{{cert: {{tls}}/localhost.pem, key: {{tls}}/localhost.key}}}}]}}}}
upstreams:
  app: {{{{servers: ["http://127.0.0.1:{upstream}"], breaker: {{{{min_requests: 10, open: {open}}}}}}}}}
routes:
  - {{{{match: {{{{path: /*}}}}, to: app}}}}
"""


class Upstream(BaseHTTPRequestHandler):
    """Fails where the path says so."""

    def do_GET(self) -> None:
        self.send_response(500 if self.path == "/fail" else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def running(tmp_path: Path, upstream: int) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path, EDGE.format(upstream=upstream, open="60s"), tmp_path).start()
    yield appliance
    assert appliance.stop() == 0, appliance.log


def breaker(
    appliance: Appliance, order: str, upstream: str | None = None, for_s: float | None = None
) -> dict[str, Any]:
    """What the appliance says of the breaker of app."""
    told: dict[str, Any] = call(Path(appliance._runtime_dir), "breakers", order=order, upstream=upstream, for_s=for_s)
    row: dict[str, Any] = told["breakers"]["app"]
    return row


def test_it_is_forced_for_all_workers_through_a_kill_and_a_reload(running: Appliance, upstream: int) -> None:
    assert breaker(running, "list")["state"] == "closed"
    opened = running.run("breaker", "open", "app", "--for", "5m", "--json", "-c", str(running.file))
    said = json.loads(opened.stdout)["app"]
    assert (said["state"], said["forced"], said["next_probe_s"]) == ("open", True, pytest.approx(300, abs=5))

    def refused() -> None:
        for _ in range(8):  # whichever worker accepts it
            answer = running.get("/")
            assert (answer.status, int(answer.headers["Retry-After"])) == (503, pytest.approx(300, abs=30))

    refused()
    before = running.children("proxy")
    os.kill(before[0], signal.SIGKILL)
    wait_for(lambda: len(set(running.children("proxy")) - {before[0]}) == 2, "a successor")
    wait_for(lambda: json.loads(running._admin("/status"))["ready"], "it to serve")
    refused()
    running.write(EDGE.format(upstream=upstream, open="30s"))
    running.run("reload", "--wait", "-c", str(running.file))
    refused()

    line = running.run("breaker", "list", "app", "-c", str(running.file)).stdout
    assert line.startswith("app: open (forced) since 20")
    assert "opened by order" in line
    assert breaker(running, "close", "app")["forced"]
    assert {running.get("/fail").status for _ in range(20)} == {500}
    said = breaker(running, "reset")
    assert (said["state"], said["forced"]) == ("closed", False)


def test_two_workers_open_after_exactly_as_many_failures_as_one_would(running: Appliance) -> None:
    statuses = [running.get("/fail").status for _ in range(14)]
    assert statuses == [500] * 10 + [503] * 4
    said = breaker(running, "list", "app")
    assert (said["state"], said["requests"], said["failed"]) == ("open", 10, 10)
    assert running.log.count("too many failures (10 of 10 requests failed), for 60 s") == 1
    metrics = running.metrics()
    assert 'headrace_breaker_transitions_total{to="open",upstream="app"} 1.0' in metrics
    wait_for(lambda: json.loads(running._admin("/events"))["events"], "the event")
    (event,) = json.loads(running._admin("/events"))["events"]
    assert (event["kind"], event["upstream"], event["from"], event["to"]) == ("breaker", "app", "closed", "open")
    assert event["text"] in running.log
    assert json.loads(running._admin(f"/events?after={event['id']}"))["events"] == []
    line = running.run("events", "-c", str(running.file)).stdout
    assert line.endswith(f" {event['process']}: {event['text']}\n")
    assert json.loads(running.run("events", "--json", "-c", str(running.file)).stdout) == event
    assert running.run("events", "--after", str(event["id"]), "-c", str(running.file)).stdout == ""
    following = Request(f"http://127.0.0.1:{running.admin_port}/events", headers={"Accept": "text/event-stream"})
    with urlopen(following, timeout=TIMEOUT_S) as stream:
        assert [stream.readline() for _ in range(2)] == [b"id: %d\n" % event["id"], b"event: breaker\n"]
        breaker(running, "reset")
        while not (line := stream.readline()).startswith(b"data: ") or b'"to":"closed"' not in line:
            assert line
