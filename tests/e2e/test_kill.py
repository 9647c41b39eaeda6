"""What clients see when a process is killed, and that the rest serves on."""

from __future__ import annotations

import http.client
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.appliance import CHAT, Appliance, wait_for
from tests.e2e.conftest import Start

NUM_STREAMS = 8
LONG_STREAM = json.dumps(
    {
        "model": CHAT,
        "messages": [{"role": "user", "content": "Tell me a very long story about a mill by the river."}],
        "max_tokens": 4000,
        "stream": True,
    }
).encode()

WHOLE = json.dumps(
    {
        "model": CHAT,
        "messages": [{"role": "user", "content": "Tell me a story about a mill by the river."}],
        "max_tokens": 60,
        "ignore_eos": True,
    }
).encode()

TWO_WORKERS = """
workers: 2
listeners:
  - address: 127.0.0.1:{port}
    tls: {{certificates: [{{cert: {tls}/localhost.pem, key: {tls}/localhost.key}}]}}
models:
  all-minilm-l6-v2: {{path: {models}/all-minilm-l6-v2}}
routes:
  - {{match: {{path: /*}}, to: engine}}
"""


def read_to_the_end(stream: http.client.HTTPResponse) -> tuple[bytes, bool]:
    """All that still comes, and whether it ended cleanly, with the last chunk."""
    read = b""
    try:
        while piece := stream.read1(65536):
            read += piece
    except (http.client.IncompleteRead, ConnectionError, OSError) as broken:
        return read + getattr(broken, "partial", b""), False
    return read, True


def test_a_killed_engine_ends_streams_with_an_error_and_comes_back(start: Start) -> None:
    appliance = start()
    proxies, [engine] = appliance.children("proxy"), appliance.children("engine")
    with ExitStack() as clients, ThreadPoolExecutor(1) as other:
        streams = [
            clients.enter_context(appliance.stream("/v1/chat/completions", LONG_STREAM)) for _ in range(NUM_STREAMS)
        ]
        for stream in streams:
            assert stream.status == 200
            assert stream.readline().startswith(b"data: {")

        os.kill(engine, signal.SIGKILL)

        ends = [read_to_the_end(streams[0])]
        asked = other.submit(statuses_until_served, appliance)  # beside the others: it may be back before all are read
        ends += map(read_to_the_end, streams[1:])
        for rest, ended_cleanly in ends:
            *_, last = [event for event in rest.split(b"\n\n") if event.strip()]
            assert "message" in json.loads(last.strip().removeprefix(b"data: "))["error"]
            assert b"[DONE]" not in rest
            assert not ended_cleanly

        refused, served = asked.result()
    assert served == 200
    assert refused
    assert all(status == 503 and int(retry_after) >= 1 for status, retry_after in refused)
    assert appliance.children("proxy") == proxies
    assert appliance.children("engine") != [engine]


def test_requests_that_have_sent_nothing_outlive_a_killed_engine(start: Start) -> None:
    appliance = start()
    [engine] = appliance.children("engine")
    assert Path(f"/proc/{engine}/oom_score_adj").read_text() == "500\n"  # for want of memory it would be the one to go
    with ThreadPoolExecutor(NUM_STREAMS) as clients:
        answers = [clients.submit(appliance.post, "/v1/chat/completions", WHOLE) for _ in range(NUM_STREAMS)]
        wait_for(lambda: f'headrace_engine_requests{{model="{CHAT}"}} 8.0' in appliance.metrics(), "eight to be inside")
        os.kill(engine, signal.SIGKILL)
        assert [answer.result().status for answer in answers] == [200] * NUM_STREAMS
    assert appliance.children("engine") != [engine]


def statuses_until_served(appliance: Appliance) -> tuple[list[tuple[int, str]], int]:
    """(status, Retry-After) of each refusal, and the first status that is none."""
    refused: list[tuple[int, str]] = []

    def ask() -> int | None:
        answer = appliance.get("/v1/models")
        if answer.status == 200:
            return answer.status
        refused.append((answer.status, answer.headers["Retry-After"]))
        return None

    return refused, wait_for(ask, "the engine to serve again")


def test_a_killed_worker_is_replaced_and_the_other_serves_on(start: Start) -> None:
    appliance = start(TWO_WORKERS)
    first, second = appliance.children("proxy")
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: first not in appliance.children("proxy"), "the worker to be gone")
    for _ in range(20):
        assert appliance.get("/v1/models").status == 200
    replaced = wait_for(lambda: len(found := appliance.children("proxy")) == 2 and found, "a new worker")
    assert second in replaced


def test_connections_that_wait_for_a_killed_worker_are_served_by_its_successor(start: Start) -> None:
    appliance = start(TWO_WORKERS)
    workers = appliance.children("proxy")
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)  # what connects now waits in the kernel
    with ThreadPoolExecutor(NUM_STREAMS) as clients:
        answers = [clients.submit(appliance.get, "/v1/models") for _ in range(NUM_STREAMS)]
        wait_for(lambda: num_waiting(appliance.port) >= NUM_STREAMS, "the connections")
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        assert [answer.result().status for answer in answers] == [200] * NUM_STREAMS


def num_waiting(port: int) -> int:
    """How many connections wait to be accepted on the port, as /proc/net/tcp tells."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [each for each in sockets if each[3] == "0A" and each[1].endswith(f":{port:04X}")]
    return sum(int(each[4].partition(":")[2], 16) for each in listening)


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_appliance_leaves_with_zero(start: Start, signal_number: int) -> None:
    appliance = start(TWO_WORKERS)
    assert appliance.stop(signal_number) == 0
