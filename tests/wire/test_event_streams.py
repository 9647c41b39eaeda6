"""Server-sent events: passed on at once, never buffered or compressed; and how a stream of the engine breaks off."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.keys import hash_key
from tests.wire.event_streams import EVENTS, GET, HEAD, pinged, told
from tests.wire.harness import OK, RawUpstream, Script, UpstreamSide, answering, app, edge, raw_upstream

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    "content_type", ["text/event-stream; charset=utf-8", "TEXT/EVENT-STREAM", "application/x-ndjson", None]
)
async def test_E01_head_and_events_arrive_as_they_are_sent(content_type: str | None) -> None:
    go = asyncio.Queue[bytes]()

    async def script(side: UpstreamSide) -> None:
        await side.request()
        kind = f"Content-Type: {content_type}\r\n".encode() if content_type else b""
        await side.send(b"HTTP/1.1 200 OK\r\n" + kind + b"Transfer-Encoding: chunked\r\n\r\n")
        while event := await go.get():
            await side.send(b"%x\r\n%b\r\n" % (len(event), event))
        await side.send(b"0\r\n\r\n")
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(GET)
        head = await client.until(b"\r\n\r\n")  # before any event was sent
        if content_type and "event" in content_type.lower():
            assert b"X-Accel-Buffering: no\r\n" in head
            assert b"no-transform" in head
        assert b"Content-Encoding" not in head
        for number in range(5):
            event = b"data: %d\n\n" % number
            go.put_nowait(event)
            assert await client.until(event) == b"%x\r\n%b" % (len(event), event)
            assert await client.until(b"\r\n") == b"\r\n"
        go.put_nowait(b"")
        assert await client.until(b"\r\n\r\n") == b"0\r\n\r\n"


async def test_E04_E05_bytes_pass_identical_however_they_are_cut() -> None:
    text = "data: 你好🙂\r\ndata: B\r\rdata:\n\n: ping\n\n".encode()

    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(len(text)):
            for byte in b"1\r\n%b\r\n" % text[i : i + 1]:
                await side.send(bytes([byte]))
        await side.send(b"0\r\n\r\n")
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        assert (await running.ask(GET)).body == text


async def test_E02_a_stream_that_the_upstream_compressed_stays_compressed() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8bzz"
        )

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        answer = await running.ask(GET)
        assert answer.body == b"\x1f\x8bzz"
        assert answer.get("content-encoding") == "gzip"


async def test_E08_an_idle_limit_is_not_a_total_limit() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(8):
            await side.send(b"9\r\ndata: 1\n\n\r\n")
            await asyncio.sleep(0.1)
        await side.gone()

    async with raw_upstream(script) as upstream, edge(app(upstream.port, timeouts={"idle": "700ms"})) as running:
        client = await running.connect()
        await client.send(GET)
        body, ending = await client.rest()
        assert body.count(b"data: 1\n\n") == 8  # longer than the limit in all, never idle for as long
        assert ending == "rst"  # then the silence is cut, and not by a clean end
        assert not body.endswith(b"0\r\n\r\n")


@asynccontextmanager
async def engine(script: Script) -> AsyncIterator[tuple[RawUpstream, dict[str, Any]]]:
    """A raw engine on a unix socket, and a configuration that routes everything to it."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="hr") as directory:
        path = os.path.join(directory, "e.sock")
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen(16)
        listening.setblocking(False)
        async with raw_upstream(script, listening) as upstream:
            yield upstream, {"routes": [{"to": "engine"}], "engine_socket": path}


@pytest.mark.parametrize("unfinished", [b"", b"data: 1\n", b"data: {"])
async def test_E10_an_engine_that_dies_in_mid_stream_is_told_by_an_event(unfinished: bytes) -> None:
    die = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.request()
        sent = b"data: 0\n\n" + unfinished
        await side.send(HEAD + b"%x\r\n%b\r\n" % (len(sent), sent))
        await die.wait()
        side.close()

    async with engine(script) as (_, config), edge(config) as running:
        client = await running.connect()
        await client.send(POST)
        await client.until(b"data: 0\n\n" + unfinished)
        die.set()
        rest, ending = await client.rest()
        assert ending in ("fin", "rst")
        assert not rest.endswith(b"0\r\n\r\n")  # never a clean end
        chunk = rest.split(b"\r\n", 2)[2].removesuffix(b"\r\n")
        event = chunk.lstrip(b"\n")
        blank = chunk[: len(chunk) - len(event)]
        assert (unfinished + blank).endswith(b"\n\n") or not unfinished
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        error = json.loads(event.removeprefix(b"data: "))["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert b"[DONE]" not in rest


async def test_E10_an_engine_that_dies_before_the_first_token_is_an_error_with_a_status() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()

    async with engine(script) as (upstream, config), edge(config) as running:
        answer = await running.ask(POST)
        assert answer.status == 503
        assert int(answer.get("retry-after") or 0) >= 1
        assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}
        assert len(upstream.heads) == 2  # inference leaves no trace: it was tried once more


async def test_a_post_to_the_engine_is_tried_again_with_its_body() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        if len(side._upstream.heads) > 1:
            await side.send(OK)
            await side.gone()

    async with engine(script) as (upstream, config), edge(config) as running:
        assert (await running.ask(POST)).body == b"ok"
        assert upstream.received.count(b"\r\n\r\n{}") == 2


async def test_the_engine_is_told_whose_a_request_is_and_never_by_the_client() -> None:
    keys = f"keys: [{{id: laptop, hash: '{hash_key('key')}'}}]".encode()
    forged = POST.replace(b"Host", b"Headrace-Key: other\r\nheadrace_key: other\r\nHost")
    async with engine(answering(OK)) as (upstream, config):
        async with edge(config) as running:
            assert (await running.ask(forged)).status == 200
        config["routes"][0]["policies"] = {"auth": {"keys": "k"}}
        async with edge(config, materials={"k": keys}) as running:
            keyed = forged.replace(b"Host", b"Authorization: Bearer key\r\nHost")
            assert (await running.ask(keyed)).status == 200
    nobody, laptop = (head.lower().replace(b"_", b"-") for head in upstream.heads)
    assert b"headrace-key" not in nobody
    assert laptop.count(b"headrace-key") == laptop.count(b"headrace-key: laptop\r\n") == 1


async def test_an_engine_that_is_down_answers_at_once_and_is_forgiven() -> None:
    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            await side.send(OK)

    async with engine(script) as (upstream, config), edge(config) as running:
        running.worker.engine_state(False, "it is being restarted: /run/engine-3.sock")
        answer = await running.ask(POST)
        assert answer.status == 503
        assert int(answer.get("retry-after") or 0) >= 1
        assert b"The inference engine is not serving; try again in 5 s." in answer.body
        assert b"/run" not in answer.body  # why it is down is for the log
        assert upstream.received == b""
        snapshot = await running.worker.build(running.config, {}, {})
        await running.worker.commit(snapshot)
        assert (await running.ask(POST)).status == 503  # a reload does not forget it
        running.worker.engine_state(True)
        assert (await running.ask(POST)).status == 200


async def test_a_model_that_is_away_or_full_does_not_open_the_breaker_for_the_others() -> None:
    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            away = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n"
            await side.send(away if b"/v2/models/away/" in side._upstream.heads[-1] else OK)

    async with engine(script) as (_, config), edge(config) as running:
        away = POST.replace(b"/v1/chat/completions", b"/v2/models/away/infer")
        assert away != POST
        assert [(await running.ask(away)).status for _ in range(100)] == [503] * 100
        assert (await running.ask(POST)).status == 200
        breaker = running.worker.breakers()["engine"]
        assert (breaker["state"], breaker["failed"], breaker["refused"]) == ("warning", 0, 100)


async def test_an_engine_without_a_socket_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    # So long its successor is waited for, and longer than any test may take.
    monkeypatch.setattr("proxy.upstream.upstream.ENGINE_CONNECT_S", 0.2)
    config = {
        "routes": [{"to": "engine"}],
        "engine_socket": "/tmp/headrace-nobody-listens-here.sock",
        "defaults": {"timeouts": {"connect": "200ms"}},
    }
    async with edge(config) as running:
        answer = await running.ask(POST)
        assert answer.status == 503
        assert answer.get("retry-after") is not None


@pytest.mark.parametrize("framing", [b"", b"Transfer-Encoding: chunked\r\n"])
async def test_E11_a_stream_that_ends_after_done_ends_cleanly(framing: bytes) -> None:
    text = b'data: {"usage":{}}\n\ndata: [DONE]\n\n'

    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            if framing:
                await side.send(HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text))
            else:
                await side.send(EVENTS + b"\r\n" + text)
                return

    async with raw_upstream(script) as upstream, edge(pinged(upstream.port)) as running:
        client = await running.connect()
        for _ in range(2):
            await client.send(GET)
            assert (await client.answer()).body == text
        assert upstream.num_connections == (1 if framing else 2)


@pytest.mark.parametrize("at", range(1, 20))
async def test_E04_cut_inside_a_character_at_every_place(at: int) -> None:
    text = "data: 你好🙂\n\n".encode()
    queue = asyncio.Queue[bytes]()
    for piece in (text[:at], text[at:], b""):
        queue.put_nowait(piece)
    async with raw_upstream(told(queue)) as upstream, edge(app(upstream.port)) as running:
        assert (await running.ask(GET)).body == text


async def test_E04_a_stream_that_ends_inside_a_character_ends_as_it_is() -> None:
    text = "data: 🙂".encode()[:-2]
    queue = asyncio.Queue[bytes]()
    queue.put_nowait(text)
    queue.put_nowait(b"")
    async with raw_upstream(told(queue)) as upstream, edge(app(upstream.port)) as running:
        assert (await running.ask(GET)).body == text
