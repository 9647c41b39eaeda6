"""What a language model's stream tells the breaker, the store of answers and the promise of first tokens."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from time import monotonic
from typing import Any

import orjson
import pytest

from tests.wire.harness import Edge, UpstreamSide, app, edge, eventually, raw_upstream
from tests.wire.models import DONE, ERROR, ROLE, STREAM, Recording, chat, chunks, model_routes, sends, text

WHOLE = STREAM + chunks(ROLE, text(b"hi"), DONE)
FAILS = STREAM + chunks(ROLE, text(b"hi"), ERROR, DONE)
REFUSES = STREAM + chunks(ROLE, b'data: {"error": {"type": "tokens", "code": "rate_limit_exceeded"}}\n\n', DONE)


def openai(port: int, **upstream: Any) -> dict[str, Any]:
    return app(port, kind="openai", **upstream)


def told(running: Edge, name: str = "app") -> dict[str, Any]:
    found: dict[str, Any] = running.worker.breakers()[name]
    return found


class Paced:
    """Streams whose first token comes ``delay_s`` after the role."""

    def __init__(self, delay_s: float, answer: bytes = b"from a") -> None:
        self.delay_s = delay_s
        self.answer = answer

    async def __call__(self, side: UpstreamSide) -> None:
        while await side.request() is not None:
            await side.send(STREAM + chunks(ROLE, end=False))
            await asyncio.sleep(self.delay_s)
            await side.send(chunks(text(self.answer), DONE))


async def test_I04_streams_that_fail_in_an_event_and_end_well_open_the_breaker(tmp_path: Path) -> None:
    with (tmp_path / "access.log").open("wb") as log:
        await _fail_in_events(log.fileno())
    lines = [orjson.loads(line) for line in (tmp_path / "access.log").read_bytes().splitlines()]
    assert [(line["status"], line["ending"]) for line in lines] == [(200, "upstream_error")] * 3 + [(503, "refused")]


async def _fail_in_events(access_log_fd: int) -> None:
    breaker = {"min_requests": 3, "open": "30s"}
    async with (
        raw_upstream(sends(FAILS)) as upstream,
        edge(openai(upstream.port, breaker=breaker), access_log_fd=access_log_fd) as running,
    ):
        for _ in range(3):
            answer = await running.ask(chat())
            assert (answer.status, answer.body) == (200, ROLE + text(b"hi") + ERROR + DONE)
        assert (told(running)["requests"], told(running)["failed"]) == (3, 3)
        answer = await running.ask(chat())
        assert (answer.status, answer.get("retry-after")) == (503, "30")
        assert len(upstream.heads) == 3


async def test_I04_a_models_streams_that_reset_after_two_events_open_the_breaker() -> None:
    script = sends(STREAM + chunks(ROLE, text(b"hi"), end=False), then="reset")
    async with raw_upstream(script) as a, edge(model_routes(a.port)) as running:
        running.worker.order_breakers("reset", ["a"], None, 0.0)
        for _ in range(20):
            client = await running.connect()
            await client.send(chat())
            assert (await client.rest())[1] == "rst"
        assert told(running, "a")["state"] == "open"
        assert (await running.ask(chat())).status == 503
        assert len(a.heads) == 20


@pytest.mark.parametrize("said", [b"", STREAM + chunks(ROLE, end=False)])
async def test_I01_I02_a_hung_model_gets_one_probe_and_one_that_is_left_gives_its_place_back(said: bytes) -> None:
    """Whether it says nothing, or begins a stream and never comes to its first token."""

    async def hang(side: UpstreamSide) -> None:
        await side.request()
        await side.send(said)
        await side.gone()

    async with raw_upstream(hang) as a, edge(model_routes(a.port)) as running:
        running.worker.order_breakers("open", ["a"], 0.001, 0.0)
        await eventually(lambda: told(running, "a")["next_probe_s"] == 0)
        probing = await running.connect()
        await probing.send(chat())
        await eventually(lambda: len(a.heads) == 1)
        if said:
            await probing.until(ROLE)
        answers = await asyncio.gather(*(running.ask(chat()) for _ in range(199)))
        assert {(answer.status, answer.get("retry-after")) for answer in answers} == {(503, "1")}
        assert len(a.heads) == 1
        probing.reset()
        await eventually(lambda: told(running, "a")["probes"]["in_flight"] == 0)
        again = await running.connect()
        await again.send(chat())
        await eventually(lambda: len(a.heads) == 2)


async def test_a_stream_that_says_that_it_takes_no_more_has_refused_and_not_failed() -> None:
    breaker = {"min_requests": 3}
    async with raw_upstream(sends(REFUSES)) as upstream, edge(openai(upstream.port, breaker=breaker)) as running:
        for _ in range(4):
            await running.ask(chat())
        assert (told(running)["state"], told(running)["refused"], told(running)["failed"]) == ("warning", 4, 0)


async def test_a_refusal_before_any_content_is_one_where_another_upstream_answers() -> None:
    async with (
        raw_upstream(sends(REFUSES)) as a,
        raw_upstream(sends(WHOLE)) as b,
        edge(model_routes(a.port, b.port)) as running,
    ):
        assert (await running.ask(chat())).get("headrace-upstream") == "b"
        assert (told(running, "a")["refused"], told(running, "a")["failed"]) == (1, 0)


async def test_no_first_token_in_time_is_a_failure_and_another_upstream_answers() -> None:
    silent = sends(STREAM + chunks(ROLE, end=False), then="silence")
    async with raw_upstream(silent) as a, raw_upstream(sends(WHOLE)) as b:
        config = model_routes(a.port, b.port)
        config["upstreams"]["a"]["timeouts"] = {"first_byte": "50ms"}
        async with edge(config) as running:
            assert (await running.ask(chat())).get("headrace-upstream") == "b"
            assert told(running, "a")["failed"] == 1


async def test_no_first_token_in_time_ends_a_stream_that_is_kept_alive_by_comments() -> None:
    async def pinging(side: UpstreamSide) -> None:
        await side.request()
        await side.send(STREAM)
        while not side._upstream.broken.is_set():
            await side.send(chunks(b": ping\n\n", end=False))
            await asyncio.sleep(0.005)

    timeouts = {"first_byte": "100ms"}
    async with raw_upstream(pinging) as upstream, edge(openai(upstream.port, timeouts=timeouts)) as running:
        client = await running.connect()
        await client.send(chat())
        received, ending = await client.rest()
        assert received.startswith(b"HTTP/1.1 200 ")
        assert b'"code":"upstream_timeout"' in received
        assert not received.endswith(b"0\r\n\r\n")
        assert ending == "fin"
        assert told(running)["failed"] == 1


async def test_the_first_token_is_what_is_timed_and_whole_answers_are_not() -> None:
    async with raw_upstream(Paced(0.05)) as upstream, edge(openai(upstream.port)) as running:
        await running.ask(chat())
        assert told(running)["first_byte_s"] > 0.04  # timers may be a little early
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    async with raw_upstream(sends(whole)) as upstream, edge(openai(upstream.port)) as running:
        await running.ask(chat(stream=False))
        assert told(running)["first_byte_s"] is None


async def test_an_answer_that_failed_in_its_stream_is_not_given_again() -> None:
    good = Recording(FAILS, WHOLE)
    async with raw_upstream(good) as upstream:
        config = openai(upstream.port)
        config["routes"][0]["policies"] = {"idempotency": {}}
        async with edge(config) as running:
            bodies = [(await running.ask(chat("chat", "Idempotency-Key: a"))).body for _ in range(3)]
    assert [ERROR in body for body in bodies] == [True, False, False]
    assert len(good.raw) == 2


async def test_a_slow_upstream_degrades_its_model_and_comes_back_only_when_it_is_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Degraded by the mean of five first tokens; back when the mean has come below four fifths of the limit."""
    caplog.set_level(logging.INFO, "headrace.proxy")
    slow = Paced(0.3)
    async with raw_upstream(slow) as a, raw_upstream(Paced(0.0, b"from b")) as b:
        config = model_routes(a.port, b.port, degrade_to="light", when={"first_token_p95": "1h"})
        config["model_routes"]["chat"]["upstreams"].pop()
        config["model_routes"]["light"] = {"upstreams": [{"to": "b"}]}
        config["upstreams"]["a"]["breaker"] = {"slow": "250ms", "min_requests": 5, "window": "1h"}
        events: list[dict[str, Any]] = []
        async with edge(config, notify=events.append) as running:
            for _ in range(5):
                assert (await running.ask(chat())).get("headrace-upstream") == "a"
            assert told(running, "a")["state"] == "degraded"
            served = [(await running.ask(chat())).get("headrace-model") for _ in range(10)]
            assert "light" in served  # one in twenty still goes to see
            slow.delay_s = 0.0
            assert running.worker._snapshot is not None
            breaker = running.worker._snapshot.upstreams["a"].breaker
            while told(running, "a")["state"] == "degraded":
                assert told(running, "a")["first_byte_s"] > 0.2
                await running.ask(chat())
                breaker.look(monotonic())
            assert told(running, "a")["first_byte_s"] <= 0.2
            assert (await running.ask(chat())).get("headrace-upstream") == "a"
    lines = [event["text"] for event in events]
    assert lines == [record.message for record in caplog.records if record.message in lines]
    assert [event.get("to", event.get("degraded")) for event in events] == ["degraded", True, "closed", False]
    assert lines[0].startswith("upstream a: breaker closed -> degraded: first bytes come late (after 0.")
    assert lines[1] == "model chat: new requests go to light first: its upstream is degraded"
