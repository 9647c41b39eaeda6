"""`headrace variants` against a running appliance with several workers: one count, one share, one set of tokens."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.appliance import TIMEOUT_S, Answer, Appliance, wait_for
from tests.e2e.test_breaker import upstream as upstream_for_breakers
from tests.wire.models import keys_file

upstream = upstream_for_breakers
EDGE = """
workers: 4
listeners:
  - address: 127.0.0.1:{{port}}
    tls: {{{{certificates: [{{{{cert: {{tls}}/localhost.pem, key: {{tls}}/localhost.key}}}}]}}}}
upstreams:
  app: {{{{servers: ["http://127.0.0.1:{upstream}"]}}}}
routes:
  - name: app
    match: {{{{path: /*}}}}
    to: app
    policies:
      auth: {{{{keys: keys.yaml}}}}
      variants:
        of: {{{{b: {{{{share: {share}, headers: {{{{set: {{{{X-Trial: "1"}}}}}}}}}}}}}}}}
        user: {{{{header: X-User}}}}
        outcomes: {{{{path: /outcomes}}}}
"""


@pytest.fixture
def running(tmp_path: Path, upstream: int) -> Iterator[Appliance]:
    (tmp_path / "keys.yaml").write_bytes(keys_file())
    appliance = Appliance(tmp_path, EDGE.format(upstream=upstream, share="20%"), tmp_path).start()
    yield appliance
    assert appliance.stop() == 0, appliance.log


@lru_cache(maxsize=1)
def trust(appliance: Appliance) -> ssl.SSLContext:
    """Made once: reading the authority's certificate takes longer than a request."""
    return appliance.trust


def ask(appliance: Appliance, method: str, path: str, user: int = 0, body: bytes | None = None) -> Answer:
    connection = http.client.HTTPSConnection("127.0.0.1", appliance.port, context=trust(appliance), timeout=TIMEOUT_S)
    try:
        headers = {"Authorization": "Bearer hr_test", "X-User": f"user-{user}"}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


def variants(appliance: Appliance, *arguments: str) -> dict[str, dict[str, Any]]:
    """The rows of the route by variant, after an order."""
    said = appliance.run("variants", *arguments, "--json", "-c", str(appliance.file)).stdout
    return {row["variant"]: row for row in json.loads(said)["app"]}


def test_workers_count_together_through_a_kill_and_a_reload_and_obey_one_order(
    running: Appliance, upstream: int
) -> None:
    def asked(users: range) -> list[Answer]:
        return [ask(running, "GET", "/", user) for user in users]

    answers = asked(range(40))
    given = [answer.headers["headrace-variant"] for answer in answers]
    assert [answer.headers["headrace-variant"] for answer in asked(range(40))] == given
    before = running.children("proxy")
    os.kill(before[0], signal.SIGKILL)
    wait_for(lambda: len(set(running.children("proxy")) - {before[0]}) == 4, "a successor")
    wait_for(lambda: json.loads(running._admin("/status"))["ready"], "it to serve")
    assert [answer.headers["headrace-variant"] for answer in asked(range(40))] == given
    rows = variants(running)
    assert (rows["b"]["requests"], rows["control"]["requests"]) == (3 * given.count("b"), 3 * given.count("control"))
    assert rows["b"]["good"] == rows["b"]["requests"]

    # Outcomes by tokens that the dead worker, too, has given; whichever worker hears them.
    for i, answer in enumerate(answers):
        told = json.dumps({"token": answer.headers["headrace-outcome"], "good": i % 2 == 0}).encode()
        assert [ask(running, "POST", "/outcomes", 0, told).status for _ in range(2)] == [204, 409]
    rows = variants(running, "list", "app")
    assert rows["b"]["outcomes"] + rows["control"]["outcomes"] == 40
    assert rows["b"]["good_outcomes"] + rows["control"]["good_outcomes"] == 20

    rows = variants(running, "set", "app", "b", "5%")
    assert rows["b"]["share"] == 0.05
    fewer = [answer.headers["headrace-variant"] for answer in asked(range(40))]
    assert {(a, b) for a, b in zip(given, fewer, strict=True) if a != b} <= {("b", "control")}
    assert fewer.count("b") < given.count("b")
    running.run("reload", "--wait", "-c", str(running.file))
    assert variants(running)["b"]["share"] == 0.05
    running.write(EDGE.format(upstream=upstream, share="10%"))
    running.run("reload", "--wait", "-c", str(running.file))
    rows = variants(running)
    assert (rows["b"]["share"], rows["b"]["requests"]) == (0.1, 3 * given.count("b") + fewer.count("b"))

    counted = f'headrace_variant_requests_total{{result="good",route="app",variant="b"}} {rows["b"]["requests"]:.1f}'
    assert counted in running.metrics()
    rows = variants(running, "reset", "app")
    assert [row["requests"] for row in rows.values()] == [0, 0]
    assert running.run("variants", "-c", str(running.file)).stdout.startswith("route app\n  variant  share  requests")
    told = json.dumps({"token": answers[0].headers["headrace-outcome"], "good": True}).encode()
    assert ask(running, "POST", "/outcomes", 0, told).status == 400
