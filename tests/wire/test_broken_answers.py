"""Upstreams that break off: a truncated answer must never look complete."""

from __future__ import annotations

import json
import os

import pytest

from proxy.exchange import Ending
from tests.wire.harness import RawUpstream, UpstreamSide, answering, app, edge, raw_upstream

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
GET_10 = b"GET / HTTP/1.0\r\nHost: x\r\n\r\n"
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 40
CHUNK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
OPEN = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 40


def breaking(answer: bytes, *, reset: bool) -> RawUpstream:
    """A script that sends ``answer`` and ends the connection when the proxy has passed it on."""

    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(answer)
        await side._upstream.broken.wait()
        side.reset() if reset else side.close()

    return raw_upstream(script)


@pytest.mark.parametrize(
    ("answer", "reset", "request_head"),
    [
        pytest.param(LENGTH, False, GET, id="a length, FIN"),
        pytest.param(LENGTH, True, GET, id="a length, RST"),
        pytest.param(CHUNK, False, GET, id="b chunked, FIN"),
        pytest.param(CHUNK, True, GET, id="c chunked, RST"),
        pytest.param(OPEN, True, GET, id="d no length, RST"),
        pytest.param(CHUNK, False, GET_10, id="b chunked to an old client, FIN"),
        pytest.param(OPEN, True, GET_10, id="d no length to an old client, RST"),
    ],
)
async def test_C05_a_broken_answer_is_aborted(answer: bytes, reset: bool, request_head: bytes) -> None:
    async with breaking(answer, reset=reset) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(request_head)
        got = await client.until(answer.partition(b"\r\n\r\n")[2][-7:].strip())
        upstream.broken.set()
        rest, ending = await client.rest()
        assert ending == "rst"
        assert not (got + rest).endswith(b"0\r\n\r\n")
        state = running.worker.statistics()["upstreams"]["app"]
        assert state["servers"][f"http://127.0.0.1:{upstream.port}"]["in_flight"] == 0


async def test_C05_e_without_a_length_fin_is_the_end() -> None:
    async with breaking(OPEN, reset=False) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        await client.until(b"x" * 40)
        upstream.broken.set()
        assert await client.until(b"0\r\n\r\n") == b"\r\n0\r\n\r\n"


async def test_C05_what_was_received_arrives_before_the_abort() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(CHUNK)
        side.close()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        rest, ending = await client.rest()
        assert b"5\r\nhello\r\n" in rest
        assert ending == "rst"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_502_when_the_upstream_fails_before_anything_was_sent(answer: bytes) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(answer)
        side.close()

    async with raw_upstream(script) as upstream, edge(app(upstream.port, retry={"attempts": 1})) as running:
        assert (await running.ask(GET)).status == 502


async def test_502_when_the_head_and_its_contradiction_come_together() -> None:
    bad = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot-a-size\r\n"
    async with raw_upstream(answering(bad)) as upstream, edge(app(upstream.port)) as running:
        assert (await running.ask(GET)).status == 502


async def test_E10_a_remote_stream_that_breaks_is_aborted_and_nothing_is_added() -> None:
    events = b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in [b"data: %d\n\n" % i for i in range(5)])
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with breaking(head + events, reset=True) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        await client.until(b"data: 4\n\n")
        upstream.broken.set()
        rest, ending = await client.rest()
        assert (rest.strip(), ending) == (b"", "rst")


@pytest.mark.parametrize("reset", [False, True])
async def test_C05_a_broken_answer_is_logged_and_counted_as_the_upstreams_failure(reset: bool) -> None:
    reading, writing = os.pipe()
    breaker_table = {"min_requests": 2, "failures": "100%"}
    async with breaking(LENGTH, reset=reset) as upstream:
        config = app(upstream.port, breaker=breaker_table, health={"fails": 100})
        async with edge(config, access_log_fd=writing) as running:
            for _ in range(2):
                client = await running.connect()
                await client.send(GET)
                await client.until(b"x" * 40)
                upstream.broken.set()
                assert (await client.rest())[1] == "rst"
                upstream.broken.clear()
            assert running.worker.breakers()["app"]["state"] == "open"
            assert running.worker._snapshot is not None
            metrics = running.worker._snapshot.metrics["*/*"]
            assert metrics._endings[Ending.UPSTREAM_ABORTED].value == 2
            assert (await running.ask(GET)).status == 503
    os.close(writing)
    with os.fdopen(reading) as log:
        lines = [json.loads(line) for line in log]
    assert [(line["status"], line["ending"]) for line in lines] == [
        (200, "upstream_aborted"),
        (200, "upstream_aborted"),
        (503, "refused"),
    ]
    assert "in the middle of the answer" in lines[0]["reason"]


async def test_C05_g_a_client_that_pipelines_is_answered_no_further() -> None:
    async with breaking(CHUNK, reset=True) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET * 3)
        await client.until(b"hello")
        upstream.broken.set()
        rest, ending = await client.rest()
        assert (rest.strip(), ending) == (b"", "rst")  # and no answer to the others


@pytest.mark.parametrize(
    "size",
    [b"5 ", b" 5", b"+5", b"-5", b"0x5", b"", b"5\r", b"1" + b"0" * 16, b"F" * 17, b"5\x00", b"5,5", b"5\n"],
    ids=repr,
)
async def test_A05_C07_a_chunk_that_is_malformed_ends_nothing(size: bytes) -> None:
    bad = size + (b"" if size.endswith(b"\n") else b"\r\n") + b"hello\r\n0\r\n\r\n"

    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        await side._upstream.broken.wait()
        await side.send(bad)
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        await client.until(b"2\r\nok\r\n")
        upstream.broken.set()
        assert await client.rest() == (b"", "rst")
