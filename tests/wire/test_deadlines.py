"""Deadlines over real sockets: what the upstream is told, and that nothing is done for those who do not wait."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.wire.harness import OK, UpstreamSide, answering, app, edge, raw_upstream, reached
from tests.wire.models import Recording, answer, chat, model_routes


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
