"""What an origin says of its own limits, beside ours, as a client sees it."""

from __future__ import annotations

import pytest

from tests.wire.harness import answering, app, edge, raw_upstream


@pytest.mark.parametrize(("theirs", "said"), [(b"2", "2"), (b"500", "5")])
async def test_a_client_sees_one_limit_of_requests_and_that_is_the_tighter_one(theirs: bytes, said: str) -> None:
    answer = b"HTTP/1.1 200 OK\r\nx-ratelimit-limit-requests: %b\r\nContent-Length: 0\r\n\r\n" % theirs
    async with raw_upstream(answering(answer)) as upstream:
        config = app(upstream.port)
        config["limits"] = {"few": {"key": "all", "requests": "5/min", "headers": ["openai"]}}
        config["routes"][0]["policies"] = {"rate_limit": ["few"]}
        async with edge(config) as running:
            answered = await running.ask(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answered.get("x-ratelimit-limit-requests") == said  # once
