"""A full engine in the whole appliance: known to the workers, refused before the body, forgotten when it is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

from tests.e2e.appliance import CHAT, TIMEOUT_S, Appliance, wait_for
from tests.e2e.conftest import Start

ONE_PLACE = """
workers: 2
listeners:
  - address: 127.0.0.1:{port}
    tls: {{certificates: [{{cert: {tls}/localhost.pem, key: {tls}/localhost.key}}]}}
models:
  smollm2-135m-instruct: {{path: {models}/smollm2-135m-instruct, slots: 1, queue: 1}}
routes:
  - {{name: ai, match: {{path: /*}}, to: engine}}
"""
STORY = [{"role": "user", "content": "Tell me a very long story."}]
LONG = json.dumps({"model": CHAT, "messages": STORY, "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
SHORT = json.dumps({"model": CHAT, "messages": STORY, "max_tokens": 1}).encode()
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 500000\r\nExpect: 100-continue\r\n"
    b"Connection: close\r\n\r\n"
)


def first_line(appliance: Appliance) -> bytes:
    """What is answered first to the head of a long request whose client waits for leave to send its body."""
    plain = socket.create_connection(("127.0.0.1", appliance.port), TIMEOUT_S)
    with appliance.trust.wrap_socket(plain, server_hostname="127.0.0.1") as tls, tls.makefile("rb") as answer:
        tls.sendall(HEAD)
        return answer.readline()


def test_a_full_engine_is_refused_by_every_worker_before_the_body_and_one_that_was_killed_is_not(start: Start) -> None:
    appliance = start(ONE_PLACE)
    assert first_line(appliance) == b"HTTP/1.1 100 Continue\r\n"
    [engine] = appliance.children("engine")
    with ThreadPoolExecutor(1) as other, appliance.stream("/v1/chat/completions", LONG) as stream:
        assert stream.status == 200
        assert stream.readline().startswith(b"data: {")
        waiting = other.submit(appliance.post, "/v1/chat/completions", SHORT)
        wait_for(lambda: f'headrace_engine_requests{{model="{CHAT}"}} 2.0' in appliance.metrics(), "two to be inside")
        answers = [first_line(appliance) for _ in range(8)]  # whichever worker accepts it
        assert answers == [b"HTTP/1.1 503 Service Unavailable\r\n"] * 8
        refused = appliance.post("/v1/chat/completions", SHORT)
        assert (refused.status, refused.error["code"]) == (503, "capacity_exceeded")
        assert int(refused.headers["Retry-After"]) >= 1
        assert 'headrace_shed_total{priority="normal",route="ai"} 9.0' in appliance.metrics()
        os.kill(engine, signal.SIGKILL)
        assert waiting.result().status == 200  # by its successor, which begins empty
    assert wait_for(lambda: first_line(appliance) == b"HTTP/1.1 100 Continue\r\n", "a place")
