"""Deadlines over real sockets: what the upstream is told, and that nothing is done for those who do not wait."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import orjson
import pytest

from tests.wire.harness import OK, UpstreamSide, answering, app, edge, eventually, raw_upstream, reached
from tests.wire.models import DONE, ROLE, STREAM, Recording, answer, chat, chunks, model_routes, sends, text
from tests.wire.test_event_streams import engine


def table(port: int) -> dict[str, Any]:
    """One upstream, behind the policy."""
    return {**app(port), "routes": [{"to": "app", "policies": {"priority": {}}}]}


async def test_what_is_left_of_a_deadline_is_told_upstream() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(table(upstream.port)) as running:
        request = b"GET / HTTP/1.1\r\nHost: x\r\nX-Request-Deadline: 60s\r\nX-Priority: high\r\n\r\n"
        assert (await running.ask(request)).status == 200
        head = upstream.heads[0]
        left_ms = re.search(rb"\r\nheadrace-deadline: (\d+)ms\r\n", head)
        assert left_ms is not None
        assert 0 < int(left_ms[1]) <= 60_000
        assert b"x-request-deadline" not in head.lower()
        assert b"priority" not in head.lower()  # without a key that may


async def test_at_the_deadline_the_upstream_is_left_and_the_client_told() -> None:
    async def never(side: UpstreamSide) -> None:
        await side.request()
        await side.gone()

    async with raw_upstream(never) as upstream, edge(table(upstream.port)) as running:
        for field in (b"X-Request-Deadline: 50ms", b"x-stainless-timeout: 0.05"):
            upstream.left.clear()
            answer = await running.ask(b"GET / HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % field)
            assert answer.status == 408
            assert b"deadline" in answer.body
            await reached(upstream.left)


@pytest.mark.parametrize("by", ["deadline", "total"])
async def test_no_other_upstream_is_asked_when_nobody_waits_any_more(by: str) -> None:
    async def never(side: UpstreamSide) -> None:
        await side.request()
        await side.gone()

    other = Recording(answer(b"200 OK"))
    async with raw_upstream(never) as first, raw_upstream(other) as second:
        config = model_routes(first.port, second.port)
        config["routes"][0] |= {"policies": {"priority": {}}} if by == "deadline" else {"timeouts": {"total": "50ms"}}
        async with edge(config) as running:
            fields = ("X-Request-Deadline: 50ms",) if by == "deadline" else ()
            assert (await running.ask(chat("chat", *fields))).status == (408 if by == "deadline" else 504)
            await reached(first.left)
        assert not second.heads


async def test_a_deadline_is_told_to_the_instant_and_not_at_the_next_sweep() -> None:
    async def never(side: UpstreamSide) -> None:
        await side.request()
        await side.gone()

    async with raw_upstream(never) as upstream, edge(table(upstream.port), sweep_s=3600.0) as running:
        answer = await running.ask(b"GET / HTTP/1.1\r\nHost: x\r\nX-Request-Deadline: 50ms\r\n\r\n")
        assert answer.status == 408
        await reached(upstream.left)


async def test_a_deadline_that_passes_while_a_full_upstream_has_no_connection_is_told_then() -> None:
    async def never(side: UpstreamSide) -> None:
        await side.request()
        await side.gone()

    async with raw_upstream(never) as upstream:
        config = table(upstream.port)
        config["upstreams"]["app"]["max_connections"] = 1
        async with edge(config, sweep_s=3600.0) as running:
            first = await running.connect()
            await first.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await eventually(lambda: bool(upstream.heads))
            answer = await running.ask(b"GET / HTTP/1.1\r\nHost: x\r\nX-Request-Deadline: 50ms\r\n\r\n")
            assert answer.status == 408
            assert len(upstream.heads) == 1
            first.reset()
            await reached(upstream.left)


@pytest.mark.parametrize("events", [(ROLE,), (ROLE, text(b"hi")), (ROLE, b"data: cut")])
@pytest.mark.parametrize("by", ["deadline", "first_byte", "idle", "total"])
@pytest.mark.parametrize("route", ["openai", "models"])
async def test_a_stream_that_is_out_of_time_tells_its_client(by: str, route: str, events: tuple[bytes, ...]) -> None:
    if by == "first_byte" and len(events) > 1:
        return  # its first content, or what may be it, has come
    async with raw_upstream(sends(STREAM + chunks(*events, end=False), then="silence")) as upstream:
        config = model_routes(upstream.port) if route == "models" else app(upstream.port, kind="openai")
        config["routes"][0]["policies"] = {"priority": {}}
        if by != "deadline":
            config["routes"][0]["timeouts"] = {by: "300ms"}
        async with edge(config) as running:
            client = await running.connect()
            await client.send(chat("chat", *(("X-Request-Deadline: 500ms",) if by == "deadline" else ())))
            assert (await client.until(events[-1])).startswith(b"HTTP/1.1 200 ")
            got, ending = await client.rest()
            assert ending == "fin"
            assert not got.endswith(b"0\r\n\r\n")  # nobody shall take it for complete
            code = b"deadline_exceeded" if by == "deadline" else b"upstream_timeout"
            *_, last = got.split(b"data: ")
            assert orjson.loads(last.partition(b"\n")[0])["error"]["code"].encode() == code
            if not events[-1].endswith(b"\n\n"):
                assert b"\n\ndata: {" in got


async def test_a_stream_that_says_that_it_is_done_is_not_told_to_have_failed() -> None:
    async with raw_upstream(sends(STREAM + chunks(text(b"hi"), DONE, end=False), then="silence")) as upstream:
        config = app(upstream.port, kind="openai")
        config["routes"][0]["timeouts"] = {"idle": "100ms"}
        async with edge(config) as running:
            client = await running.connect()
            await client.send(chat("chat"))
            got, ending = await client.rest()
            assert b"error" not in got
            assert ending == "rst"


@pytest.mark.parametrize("by", ["deadline", "first_byte"])
async def test_where_nothing_was_shown_and_another_one_could_answer_it_is_told_by_the_status(by: str) -> None:
    silent = sends(STREAM + chunks(ROLE, end=False), then="silence")
    other = Recording(answer(b"200 OK"))
    async with raw_upstream(silent) as first, raw_upstream(other) as second:
        config = model_routes(first.port, second.port)
        config["routes"][0]["policies"] = {"priority": {}}
        config["upstreams"]["a"]["timeouts"] = {"first_byte": "100ms"} if by == "first_byte" else {}
        async with edge(config) as running:
            fields = ("X-Request-Deadline: 200ms",) if by == "deadline" else ()
            assert (await running.ask(chat("chat", *fields))).status == (408 if by == "deadline" else 200)
        assert bool(second.heads) is (by == "first_byte")


USED = b'{"error":{"message":"late","code":"deadline_exceeded"},"usage":{"prompt_tokens":10,"completion_tokens":34}}'
LATE = answer(b"408 Request Timeout", USED, b"x-should-retry: false")


async def test_what_the_engine_has_used_until_the_deadline_is_counted() -> None:
    async with engine(answering(LATE)) as (_, config):
        config["routes"][0]["policies"] = {"priority": {}, "tokens": {}}
        async with edge(config) as running:
            said = await running.ask(chat("chat", "X-Request-Deadline: 60s", stream=False))
            assert (said.status, b"deadline_exceeded" in said.body) == (408, True)
            label = running.config.routes[0].label
            counted = [
                running.worker._cells.counter("llm_tokens_total", "", {"route": label, "kind": kind}).value
                for kind in ("prompt", "completion")
            ]
            assert counted == [10, 34]


async def test_behind_an_engine_that_is_late_nobody_else_is_asked() -> None:
    async def late(side: UpstreamSide) -> None:
        while await side.request() is not None:
            await asyncio.sleep(0.05)  # until the deadline has passed: our engine answers then
            await side.send(LATE)

    other = Recording(answer(b"200 OK"))
    async with engine(late) as (_, of_engine), raw_upstream(other) as second:
        config = model_routes(second.port)
        config["model_routes"]["chat"]["upstreams"].insert(0, {"to": "engine", "model": "m", "priority": 1})
        config["routes"][0]["policies"] = {"priority": {}}
        async with edge({**config, "engine_socket": of_engine["engine_socket"]}, sweep_s=3600.0) as running:
            said = await running.ask(chat("chat", "X-Request-Deadline: 50ms", stream=False))
            assert (said.status, b"deadline_exceeded" in said.body) == (408, True)
        assert not second.heads


async def test_an_engine_that_does_not_say_that_it_is_late_is_left_all_the_same() -> None:
    async def never(side: UpstreamSide) -> None:
        await side.request()
        await side.gone()

    async with engine(never) as (upstream, config):
        config["routes"][0]["policies"] = {"priority": {}}
        async with edge(config, sweep_s=3600.0) as running:
            assert (await running.ask(chat("chat", "X-Request-Deadline: 50ms", stream=False))).status == 408
            await reached(upstream.left)
