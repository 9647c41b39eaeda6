"""An OpenAI-compatible upstream that misbehaves, in every way: what the client gets, and what everybody counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wire.harness import Edge, app, edge, raw_upstream
from tests.wire.models import DONE, STREAM, chat, chunks, model_routes, sends, text
from tests.wire.openai_ways import WAYS, Way

FROM_B = chunks(text(b"from b"), DONE)
LIMIT = 1_000_000
RESERVED = 1 + 5 + 3 + 1024  # for "hi": the text, its message and the answer

ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def counting(config: dict[str, Any], way: Way) -> dict[str, Any]:
    """With everything that counts or keeps something of a request."""
    config["limits"] = {"tokens": {"key": "all", "tokens": f"{LIMIT}/h", "algorithm": "sliding", "headers": ["openai"]}}
    config["routes"][0]["policies"] = {
        "context_guard": {"context": 8192},
        "idempotency": {},
        "in_flight": {"max": 1},
        "rate_limit": ["tokens"],
        "tokens": {},
    }
    name = next(iter(config["upstreams"]))
    config["upstreams"][name] |= {"retry": {"attempts": 1}, "breaker": {"min_requests": 100}}
    if way.impatient:
        # Only the time that is to run out is short: a busy machine must not make another one run out.
        config["upstreams"][name]["timeouts"] = {"first_byte" if way.by == "b" else "idle": "100ms"}
    return config


async def received(running: Edge, raw: bytes) -> tuple[bytes, str]:
    """All that comes back on a connection that is not kept, and how it ends."""
    client = await running.connect()
    await client.send(raw.replace(b"Host: x\r\n", b"Host: x\r\nConnection: close\r\n"))
    return await client.rest()


def is_told(way: Way) -> bool:
    """Whether an event says that its stream is out of time, and then nothing ends it."""
    return way.stream and way.impatient


def verdict_on(running: Edge, name: str) -> str:
    told = running.worker.breakers()[name]
    if told["refused"]:
        return "refused"
    if told["failed"]:
        return "failed"
    return "good" if told["requests"] else "nothing"


async def what_is_left(running: Edge, way: Way, used: float) -> None:
    """Nothing is held any more for a request that has ended, and its tokens were settled."""
    got, _ = await received(running, chat("chat", stream=way.stream))
    left = got.lower().partition(b"x-ratelimit-remaining-tokens: ")[2].partition(b"\r\n")[0]
    assert int(left or 0) == LIMIT - used - RESERVED


def tokens_used(running: Edge) -> float:
    cells, route = running.worker._cells, running.config.routes[0].label
    return sum(
        cells.counter("llm_tokens_total", "", {"route": route, "kind": kind}).value for kind in ("prompt", "completion")
    )


@ways
async def test_where_another_upstream_can_answer(way: Way) -> None:
    async with (
        raw_upstream(way.script) as a,
        raw_upstream(sends(STREAM + FROM_B)) as b,
        edge(counting(model_routes(a.port, b.port), way)) as running,
    ):
        got, ending = await received(running, chat("chat", "Idempotency-Key: k", stream=way.stream))
        used = tokens_used(running)
        head, _, body = got.partition(b"\r\n\r\n")
        assert bool(b.heads) is (way.by == "b")
        if way.by == "b":
            assert (head[:15], body, ending) == (b"HTTP/1.1 200 OK", FROM_B, "fin")
            assert b"headrace-upstream: b" in head
        elif way.by == "broken":
            assert (ending, b"upstream_timeout" in body) == (("fin", True) if is_told(way) else ("rst", False))
            assert not body.endswith(b"0\r\n\r\n")
        else:
            assert ending == "fin"
            assert b"headrace-upstream: a" in head
        assert verdict_on(running, "a") == way.verdict
        await what_is_left(running, way, used)


@ways
async def test_where_nobody_else_can(way: Way) -> None:
    async with raw_upstream(way.script) as a, edge(counting(app(a.port, kind="openai"), way)) as running:
        got, ending = await received(running, chat("chat", stream=way.stream))
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 ")
        if way.by != "b":  # else its beginning may have been sent by then
            assert ending == ("rst" if way.by == "broken" and not is_told(way) else "fin")
        if ending == "fin" and not (is_told(way) and b"upstream_timeout" in body):
            assert b"chunked" not in head or body.endswith(b"0\r\n\r\n")
        # What says nothing of the upstream where another one is asked is an answer like any other here.
        assert verdict_on(running, "app") == ("good" if way.verdict == "nothing" else way.verdict)
        servers = running.worker.statistics()["upstreams"]["app"]["servers"]
        assert [server["in_flight"] for server in servers.values()] == [0]


@ways
async def test_only_what_was_carried_out_is_given_again(way: Way) -> None:
    async with raw_upstream(way.script) as a, edge(counting(app(a.port, kind="openai"), way)) as running:
        for _ in range(2):
            last, _ = await received(running, chat("chat", "Idempotency-Key: k", stream=way.stream))
        carried_out = way.by != "broken" and way.verdict in ("good", "nothing")
        kept = carried_out and last[9:12] not in (b"401", b"402", b"403", b"408")
        assert (b"Idempotent-Replayed: true" in last) is kept
