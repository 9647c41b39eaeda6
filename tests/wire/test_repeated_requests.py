"""Who repeats a request says so, and is counted; and an upstream's word on repeating it is obeyed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wire.harness import OK, Script, UpstreamSide, app, edge, raw_upstream

AGAIN = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\nx-should-retry: true\r\n%b\r\nagain"
NOT_AGAIN = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\nx-should-retry: false\r\n\r\nnever"
TRUSTED = {"listener": {"trusted_proxies": ["127.0.0.0/8"]}}
COUNT = "x-envoy-attempt-count"


def in_turn(*answers: bytes) -> Script:
    """Answer with these, one after the other on all connections, the last one again and again; b"": close."""
    left = list(answers)

    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            answer = left.pop(0) if len(left) > 1 else left[0]
            if not answer:
                return
            await side.send(answer)

    return script


def post(*fields: str) -> bytes:
    lines = ("POST /v1/chat/completions HTTP/1.1", "Host: x", *fields, "Content-Length: 4", "", "body")
    return "\r\n".join(lines).encode()


def get(*fields: str) -> bytes:
    return "\r\n".join(("GET / HTTP/1.1", "Host: x", *fields, "", "")).encode()


def openai(port: int, **upstream: Any) -> dict[str, Any]:
    return app(port, kind="openai", **upstream)


async def test_the_second_attempt_says_that_it_is_one() -> None:
    async with raw_upstream(in_turn(b"", OK)) as upstream, edge(app(upstream.port)) as running:
        answer = await running.ask(get(f"{COUNT}: 7"))
        assert (answer.status, answer.get(COUNT)) == (200, None)
        assert [head.lower().count(b"\r\n%b: " % COUNT.encode()) for head in upstream.heads] == [0, 1]
        assert b"x-envoy-attempt-count: 2\r\n" in upstream.heads[1]


async def test_a_trusted_proxys_count_goes_on_and_it_is_told_ours() -> None:
    config = {**app(0, retry={"attempts": 3}), **TRUSTED}
    async with raw_upstream(in_turn(b"", OK)) as upstream:
        config["upstreams"]["app"]["servers"] = [f"http://127.0.0.1:{upstream.port}"]
        async with edge(config) as running:
            answer = await running.ask(get("X-Envoy-Attempt-Count: 2"))
            assert (answer.status, answer.get(COUNT)) == (200, "3")
            assert [b"ount: 2\r\n" in head for head in upstream.heads] == [True, False]
            assert b"ount: 3\r\n" in upstream.heads[1]


@pytest.mark.parametrize("count", ["X-Envoy-Attempt-Count: 2", "x-stainless-retry-count: 1"])
async def test_what_another_has_repeated_is_not_repeated_again(count: str) -> None:
    async with raw_upstream(in_turn(b"")) as upstream, edge({**app(upstream.port), **TRUSTED}) as running:
        assert (await running.ask(get(count))).status == 502
        assert len(upstream.heads) == 1
        assert (await running.ask(get())).status == 502
        assert len(upstream.heads) == 3


async def test_two_proxies_in_a_row_do_not_multiply_their_attempts() -> None:
    async with (
        raw_upstream(in_turn(b"")) as upstream,
        edge({**app(upstream.port), **TRUSTED}) as inner,
        edge(app(inner.port)) as outer,
    ):
        assert (await outer.ask(get())).status == 502
        assert len(upstream.heads) == 2


async def test_an_answer_that_asks_for_the_request_again_gets_it() -> None:
    script = in_turn(AGAIN % b"retry-after-ms: 2\r\n", OK)
    async with raw_upstream(script) as upstream, edge(openai(upstream.port)) as running:
        assert (await running.ask(post())).body == b"ok"
        assert upstream.received.count(b"body") == 2


async def test_no_more_often_than_attempts_nor_than_those_behind_have_tried() -> None:
    async with raw_upstream(in_turn(AGAIN % b"")) as upstream, edge(openai(upstream.port)) as running:
        answer = await running.ask(post())
        assert (answer.status, answer.body) == (503, b"again")
        assert len(upstream.heads) == 2
    script = in_turn(AGAIN % b"X-Envoy-Attempt-Count: 2\r\n")
    async with raw_upstream(script) as upstream, edge(openai(upstream.port)) as running:
        assert (await running.ask(post())).body == b"again"
        assert len(upstream.heads) == 1


@pytest.mark.parametrize("answer", [NOT_AGAIN, AGAIN % b"Retry-After: 30\r\n"])
async def test_one_that_does_not_or_not_soon_is_the_clients(answer: bytes) -> None:
    async with raw_upstream(in_turn(answer, OK)) as upstream, edge(openai(upstream.port)) as running:
        assert (await running.ask(post())).raw.endswith(answer[-5:])
        assert len(upstream.heads) == 1


async def test_a_body_of_which_no_copy_is_held_is_not_sent_again() -> None:
    async with raw_upstream(in_turn(AGAIN % b"", OK)) as upstream, edge(app(upstream.port)) as running:
        assert (await running.ask(post())).body == b"again"
        assert len(upstream.heads) == 1
