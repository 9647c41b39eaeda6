"""Tokens over sockets: what is reserved and settled, whatever becomes of the answer, with the official client, too."""

from __future__ import annotations

import asyncio
import os
import socket
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from openai import AsyncOpenAI

from proxy.llm.count import count_texts
from tests.wire.harness import (
    WAIT_S,
    Answer,
    Edge,
    Script,
    UpstreamSide,
    answering,
    app,
    edge,
    eventually,
    raw_upstream,
    reached,
)
from tests.wire.models import DONE, ROLE, STREAM, Recording, answer, chat, chunks, model_routes, sends, text

HI: Any = [{"role": "user", "content": "hi"}]
HI_TOKENS = 1 + 5 + 3
ALL = 100_000
TOLD = b'{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}'
USAGE = b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":%b}\n\n' % TOLD
WHOLE = answer(
    b"200 OK",
    b'{"id":"1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop","message":'
    b'{"role":"assistant","content":"the wheel"}}],"usage":%b}' % TOLD,
)
SAID = [
    b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    b'{"content":"%b"},"finish_reason":null}],"usage":null}\n\n' % word
    for word in (b"the", b" wheel")
]


def counted(config: dict[str, Any], **policies: Any) -> dict[str, Any]:
    """The configuration with a limit of tokens that nothing comes back of within the test."""
    config["limits"] = {
        "t": {"key": "all", "tokens": f"{ALL}/day", "algorithm": "sliding", "headers": ["openai", "ietf"]}
    }
    config["routes"][0]["policies"] = {"rate_limit": ["t"], "tokens": {"max_answer": ALL}, **policies}
    return config


def openai_app(port: int, **policies: Any) -> dict[str, Any]:
    return counted(app(port, kind="openai", retry={"attempts": 1}), **policies)


async def used(running: Edge) -> int:
    """Tokens that are used or reserved, as a request is told which needs more than there ever is."""
    said = await running.ask(chat(max_tokens=ALL))
    assert said.status == 429
    return ALL - left(said)


def left(said: Answer) -> int:
    return int(said.get("x-ratelimit-remaining-tokens") or -1)


@asynccontextmanager
async def client_of(running: Edge) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key="k", max_retries=0) as client:
        yield client


async def test_L01_the_official_client_sees_the_usage_that_it_asked_for_and_no_other() -> None:
    upstream_says = Recording(STREAM + chunks(*SAID, USAGE, DONE))
    async with (
        raw_upstream(upstream_says) as upstream,
        edge(openai_app(upstream.port)) as running,
        client_of(running) as client,
    ):
        ask: Any = {"model": "m", "messages": HI, "stream": True}
        plain = [chunk async for chunk in await client.chat.completions.create(**ask)]
        asked = [
            chunk async for chunk in await client.chat.completions.create(**ask, stream_options={"include_usage": True})
        ]
        assert [len(chunk.choices) for chunk in plain] == [1, 1]
        assert [chunk.choices[0].delta.content for chunk in plain] == ["the", " wheel"]
        assert [len(chunk.choices) for chunk in asked] == [1, 1, 0]
        assert asked[-1].usage is not None
        assert asked[-1].usage.total_tokens == 15
        assert [body["stream_options"] for body in upstream_says.bodies] == [{"include_usage": True}] * 2
        assert await used(running) == 30
    assert all(b"accept-encoding: identity\r\n" in head.lower() for head in upstream.heads)


async def test_whole_answers_completions_and_embeddings_are_settled_by_what_they_say() -> None:
    vectors = answer(
        b"200 OK",
        b'{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":"AACAPw=="}],'
        b'"usage":{"prompt_tokens":7,"total_tokens":7}}',
    )
    says = Recording(WHOLE, vectors, WHOLE)
    async with raw_upstream(says) as upstream, edge(openai_app(upstream.port)) as running, client_of(running) as client:
        whole = await client.chat.completions.create(model="m", messages=HI)
        assert whole.choices[0].message.content == "the wheel"
        embedded = await client.embeddings.create(model="m", input=["hi"])
        assert embedded.data[0].embedding == [1.0]
        await running.ask(completion())
        assert await used(running) == 15 + 7 + 15


def completion(prompt: str = "hi", **more: Any) -> bytes:
    body = orjson.dumps({"model": "m", "prompt": prompt, **more})
    lines = ("POST /v1/completions HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", "", "")
    return "\r\n".join(lines).encode() + body


async def test_L17_who_has_no_tokens_left_is_refused_before_anything_is_sent() -> None:
    async with (
        raw_upstream(answering(WHOLE)) as upstream,
        edge(openai_app(upstream.port)) as running,
        client_of(running) as client,
    ):
        held: Any = {"model": "m", "messages": HI, "max_tokens": ALL - HI_TOKENS + 1}
        with pytest.raises(openai.RateLimitError) as never:
            await client.chat.completions.create(**held)
        assert never.value.code == "rate_limit_exceeded"
        assert never.value.type == "rate_limit_error"
        assert never.value.response.headers["x-should-retry"] == "false"
        assert f"needs {ALL + 1} tokens" in never.value.message
        assert upstream.heads == []
        await client.chat.completions.create(model="m", messages=HI)
        with pytest.raises(openai.RateLimitError) as later:
            await client.chat.completions.create(**{**held, "max_tokens": ALL - 20})
        assert int(later.value.response.headers["retry-after"]) > 0
        assert later.value.response.headers["x-ratelimit-remaining-tokens"] == str(ALL - 15)
        assert later.value.response.headers["ratelimit-policy"] == f'"t.tokens";q={ALL};w=86400;qu="tokens"'
        assert len(upstream.heads) == 1


async def test_a_client_that_leaves_in_mid_stream_has_used_what_it_was_sent() -> None:
    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            await side.send(STREAM + chunks(*SAID, end=False))
            await side.gone()

    async with raw_upstream(script) as upstream, edge(openai_app(upstream.port)) as running:
        client = await running.connect()
        await client.send(chat())
        await client.until(b" wheel")
        assert await used(running) == HI_TOKENS + 1024  # it is reserved
        client.reset()
        await reached(upstream.left)
        counter = told_by(running, "estimate")
        await eventually(lambda: counter() == 1)
        assert await used(running) == HI_TOKENS + 3


def told_by(running: Edge, who: str) -> Any:
    route = running.config.routes[0].label
    cell = running.worker._cells.counter("llm_usage_requests_total", "", {"route": route, "told_by": who})
    return lambda: cell.value


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (sends(STREAM + chunks(*SAID, end=False), then="reset"), HI_TOKENS + 3),
        (sends(STREAM + chunks(*SAID, USAGE, end=False), then="reset"), 15),
        (sends(STREAM + chunks(*SAID, DONE)), HI_TOKENS + 3),
        (sends(STREAM + chunks(*SAID[:1], b'data: {"error":{"message":"out of memory"}}\n\n')), HI_TOKENS + 2),
        (sends(b"", then="reset"), 0),
        (sends(answer(b"500 Oops")), 0),
        (sends(answer(b"200 OK", b"x" * 41)), HI_TOKENS + 11),
        (sends(answer(b"200 OK", TOLD, b"Content-Encoding: gzip")), HI_TOKENS + 15),
    ],
    ids=["reset", "reset_behind_usage", "no_usage", "error", "no_answer", "500", "no_json", "encoded"],
)
async def test_whatever_the_upstream_does_is_settled(script: Script, expected: int) -> None:
    async with raw_upstream(script) as upstream, edge(openai_app(upstream.port)) as running:
        client = await running.connect()
        await client.send(chat("m", "Connection: close"))
        await client.rest()
        assert await used(running) == expected


async def test_of_several_upstreams_the_one_that_answers_is_settled_once() -> None:
    async with (
        raw_upstream(sends(STREAM + chunks(ROLE, DONE[:5]), then="reset")) as first,
        raw_upstream(sends(STREAM + chunks(ROLE, text(b"hi"), USAGE, DONE))) as second,
        edge(counted(model_routes(first.port, second.port))) as running,
    ):
        said = await running.ask(chat())
        assert said.body == ROLE + text(b"hi") + DONE
        assert said.get("headrace-upstream") == "b"
        assert told_by(running, "upstream")() == 1
        assert await used(running) == 15


async def test_what_is_replayed_costs_nothing_and_holds_no_usage_chunk() -> None:
    async with (
        raw_upstream(answering(STREAM + chunks(*SAID, USAGE, DONE))) as upstream,
        edge(openai_app(upstream.port, idempotency={})) as running,
    ):
        first, again = [await running.ask(chat("m", "Idempotency-Key: k")) for _ in range(2)]
        assert first.body == again.body == b"".join([*SAID, DONE])
        assert again.get("idempotent-replayed") == "true"
        assert await used(running) == 15
        assert len(upstream.heads) == 1


async def test_a_body_that_is_not_read_is_guessed_and_settled_all_the_same() -> None:
    async with (
        raw_upstream(answering(WHOLE)) as upstream,
        edge(openai_app(upstream.port, tokens={"read": "0B"})) as running,
    ):
        asked = chat(stream=False)
        size = len(asked.partition(b"\r\n\r\n")[2])
        assert left(await running.ask(asked)) == ALL - -(-size // 4) - 1024
        assert left(await running.ask(asked)) == ALL - 15 - -(-size // 4) - 1024
        assert b"stream_options" not in upstream.received


async def test_a_large_body_is_counted_and_a_larger_one_guessed() -> None:
    async with (
        raw_upstream(answering(WHOLE)) as upstream,
        edge(openai_app(upstream.port, tokens={"read": "200KiB"})) as running,
    ):
        asked = [completion(" the" * num_words, max_tokens=5) for num_words in (30_000, 60_000)]
        sizes = [len(each.partition(b"\r\n\r\n")[2]) for each in asked]
        found = [left(await running.ask(each)) for each in asked]
        assert 0 <= ALL - found[0] - 30_005 <= 30  # a token more where the text is cut
        assert found[1] == ALL - 15 - sizes[1] // 4 - 1024 - (sizes[1] % 4 > 0)


async def test_the_access_log_tells_what_was_used() -> None:
    reader, writer = os.pipe()
    try:
        async with (
            raw_upstream(answering(WHOLE)) as upstream,
            edge(openai_app(upstream.port), access_log_fd=writer) as running,
        ):
            await running.ask(chat("m\u00e4dchen", stream=False))
        line = orjson.loads(os.read(reader, 65536))
    finally:
        os.close(reader)
        os.close(writer)
    names = ("model", "prompt_tokens", "completion_tokens", "cached_tokens", "tokens_estimated")
    assert [line[name] for name in names] == ["m\\xc3\\xa4dchen", 10, 5, 0, False]


async def test_many_at_once_settle_to_the_token() -> None:
    """More ask than there is room for: reserved is never more than there is, and in the end used is what was told."""
    gate = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            await gate.wait()
            await side.send(WHOLE)

    reserve = 9_000
    async with (
        raw_upstream(script) as upstream,
        edge(openai_app(upstream.port)) as running,
    ):
        asked = chat(stream=False, max_tokens=reserve)
        asking = [asyncio.ensure_future(running.ask(asked)) for _ in range(40)]
        fits = ALL // (reserve + HI_TOKENS)
        async with asyncio.timeout(WAIT_S):
            while sum(each.done() for each in asking) < 40 - fits:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        gate.set()
        statuses = [(await each).status for each in asking]
        assert (statuses.count(200), statuses.count(429)) == (fits, 40 - fits)
        assert await used(running) == 15 * fits


async def test_a_local_models_own_tokenizer_counts_for_it(tmp_path: Path) -> None:
    ranks = [b"the", b" the", *(bytes([value]) for value in b"abcdefghijklmnopqrstuvwxyz ")]
    file = tmp_path / "own.tiktoken"
    file.write_bytes(b"\n".join(b"%b %d" % (b64encode(token), rank) for rank, token in enumerate(ranks)))
    own = {"kind": "tiktoken", "file": str(file), "sha256": "0" * 64, "pattern": r" ?\p{L}+|\s+"}
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "engine.sock"))
    listening.listen()
    listening.setblocking(False)
    config: dict[str, Any] = {
        "engine_socket": str(tmp_path / "engine.sock"),
        "engine_tokenizers": {"small": own},
        "model_routes": {"assistant": {"upstreams": [{"to": "engine", "model": "small"}]}},
        "routes": [{"to": "engine"}, {"match": {"path": "/by/model/*"}, "to": {"models": ["assistant"]}}],
    }
    counted(config)
    config["routes"][1]["policies"] = config["routes"][0]["policies"]
    text = "wheel the wheel"
    asked = {model: completion(text, model=model, max_tokens=0) for model in ("small", "other", "assistant")}
    asked["assistant"] = asked["assistant"].replace(b"/v1/", b"/by/model/", 1)
    async with raw_upstream(answering(answer(b"400 No")), listening), edge(config) as running:
        found = {model: ALL - left(await running.ask(raw)) for model, raw in asked.items()}
    assert found == {"small": 5 + 1 + 6, "other": count_texts([text]), "assistant": 5 + 1 + 6}


async def test_what_a_budget_refuses_costs_no_limit(tmp_path: Path) -> None:
    async with raw_upstream(answering(WHOLE)) as upstream:
        config = openai_app(upstream.port)
        config["limits"]["t"]["requests"] = "7/day"
        config["budgets"] = {"small": {"key": "all", "tokens": 60}}
        config["usage"] = {"path": str(tmp_path / "usage.db")}
        async with edge(config) as running:
            refused = await running.ask(chat(max_tokens=60))
            assert refused.status == 429
            assert orjson.loads(refused.body)["error"]["code"] == "insufficient_quota"
            assert (left(refused), refused.get("x-ratelimit-remaining-requests")) == (ALL, "7")
            assert (await running.ask(chat(max_tokens=20, stream=False))).status == 200
            refused = await running.ask(chat(max_tokens=60))
            assert (left(refused), refused.get("x-ratelimit-remaining-requests")) == (ALL - 15, "6")
        assert len(upstream.heads) == 1


@pytest.mark.parametrize("begins", [False, True])
async def test_a_deadline_that_passes_is_settled_by_what_was_shown(begins: bool) -> None:
    async def script(side: UpstreamSide) -> None:
        assert await side.request() is not None
        if begins:
            await side.send(STREAM + chunks(*SAID, end=False))
        await side.gone()

    async with raw_upstream(script) as upstream, edge(openai_app(upstream.port, priority={})) as running:
        client = await running.connect()
        await client.send(chat("m", "X-Request-Deadline: 1s", "Connection: close"))
        await client.rest()
        await reached(upstream.left)
        assert await used(running) == HI_TOKENS + 3 * begins


async def test_a_replayed_answer_tells_no_old_numbers() -> None:
    async with raw_upstream(answering(WHOLE)) as upstream, edge(openai_app(upstream.port, idempotency={})) as running:
        asked = chat("m", "Idempotency-Key: k", stream=False)
        first, again = await running.ask(asked), await running.ask(asked)
    assert len(upstream.heads) == 1
    assert first.get("x-ratelimit-remaining-tokens") is not None
    assert again.get("idempotent-replayed") == "true"
    assert not [name for name, _ in again.fields if "ratelimit" in name.lower()]


@pytest.mark.parametrize(
    ("body", "max_tokens", "spent"),
    [
        (b'{"choices":[{"message":{"content":"Hello there my friend"}}]}', 50, HI_TOKENS + 6),
        (
            b'{"choices":[{"message":{"content":"%b"}}],"usage":{"prompt_tokens":"9"}}' % (b"x" * 400),
            50,
            HI_TOKENS + 50,
        ),
        (b'{"error":{"message":"the model is not there, and the answer is an error all the same"}}', 50, 0),
    ],
)
async def test_an_answer_without_usage_costs_its_text_and_no_more_than_it_may_have(
    body: bytes, max_tokens: int, spent: int
) -> None:
    async with raw_upstream(answering(answer(b"200 OK", body))) as upstream, edge(openai_app(upstream.port)) as running:
        said = await running.ask(chat(messages=HI, stream=False, max_tokens=max_tokens))
        assert said.status == 200
        assert await used(running) == spent


@pytest.mark.parametrize("framing", [b"", b"Content-Length: 0\r\n"])
async def test_a_request_without_a_body_costs_what_its_upstream_tells(framing: bytes) -> None:
    empty = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n%b\r\n" % framing
    for said, tokens in ((WHOLE, 15), (answer(b"400 Bad Request", b'{"error": {"message": "no body"}}'), 0)):
        async with raw_upstream(answering(said)) as upstream, edge(openai_app(upstream.port)) as running:
            assert (await running.ask(empty)).status in (200, 400)
            assert await used(running) == tokens
