"""The context guard over sockets: what does not fit is refused with the numbers, and no upstream hears of it."""

from __future__ import annotations

import gzip
from typing import Any

import orjson
import pytest

from tests.wire.harness import OK, RawUpstream, answering, app, edge, raw_upstream, reload
from tests.wire.models import chat, keys_file, model_routes

KEY = "Authorization: Bearer hr_test"


def completion(num_tokens: int, max_tokens: int | None = None, *fields: str) -> bytes:
    """A prompt of so many tokens, as raw bytes."""
    asked: dict[str, Any] = {"model": "m", "prompt": " the" * num_tokens, "max_tokens": max_tokens}
    body = orjson.dumps(asked)
    lines = ("POST /v1/completions HTTP/1.1", "Host: x", *fields, f"Content-Length: {len(body)}", "", "")
    return "\r\n".join(lines).encode() + body


def guarded(upstream: RawUpstream, **guard: Any) -> dict[str, Any]:
    config = app(upstream.port, kind="openai")
    config["routes"][0]["policies"] = {"context_guard": {"context": 2048, "margin": "0%", **guard}}
    return config


@pytest.mark.parametrize(
    ("case", "num_tokens", "max_tokens", "status"),
    [
        ("a", 2047, None, 200),
        ("b", 2048, None, 422),
        ("c", 2049, None, 422),
        ("d", 1000, 1048, 200),
        ("e", 1000, 1049, 422),  # where the route has a guard, what cannot be had is refused; the engine alone clamps
        ("f", 1000, None, 200),
    ],
)
async def test_L16_the_arithmetic_of_contexts(case: str, num_tokens: int, max_tokens: int | None, status: int) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(guarded(upstream, reserve="0%")) as running:
        said = await running.ask(completion(num_tokens, max_tokens))
        assert said.status == status, said.body
        assert len(upstream.heads) == (status == 200)
        if status == 422:
            error = orjson.loads(said.body)["error"]
            assert error["code"] == "context_length_exceeded"
            assert error["param"] == "prompt"
            assert "2048" in error["message"]
            assert str(num_tokens) in error["message"]


async def test_L16g_another_tokenizer_than_the_models_is_given_a_margin() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(guarded(upstream, reserve="0%", margin="10%")) as running:
        assert (await running.ask(completion(1860))).status == 200
        assert (await running.ask(completion(1870))).status == 422


async def test_the_reserve_is_kept_for_answers_of_no_named_length() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(guarded(upstream, status=400)) as running:
        assert (await running.ask(completion(1740))).status == 200
        said = await running.ask(completion(1741))
        assert said.status == 400
        assert orjson.loads(said.body)["error"]["code"] == "context_length_exceeded"
        assert (await running.ask(completion(1741, 100))).status == 200


async def test_a_reload_changes_the_thresholds() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(guarded(upstream)) as running:
        assert (await running.ask(completion(1800))).status == 422
        await reload(running, guarded(upstream, reserve="10%"))
        assert (await running.ask(completion(1800))).status == 200
        await reload(running, guarded(upstream, context=1000))
        assert (await running.ask(completion(900))).status == 422


async def test_keys_that_may_pass_the_guard() -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = guarded(upstream)
        config["routes"][0]["policies"]["auth"] = {"keys": "keys.yaml"}
        async with edge(config, materials={"keys.yaml": keys_file(context=True)}) as running:
            assert (await running.ask(completion(4000, None, KEY))).status == 200
        async with edge(config, materials={"keys.yaml": keys_file()}) as running:
            assert (await running.ask(completion(4000, None, KEY))).status == 422


async def test_a_model_route_says_how_much_its_model_takes() -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = model_routes(upstream.port, context=100, aliases=["gpt-4o"])
        config["routes"][0]["policies"] = {"context_guard": {}}
        async with edge(config) as running:
            long = [{"role": "user", "content": " the" * 100}]
            assert (await running.ask(chat("gpt-4o", messages=long))).status == 422
            assert (await running.ask(chat("gpt-4o"))).status == 200


@pytest.mark.parametrize("text", ["<|endoftext|>" * 50, "a" * 20_000, "\u4f60\u597d" * 500, "\ud83d", "\x00" * 3000])
async def test_L13_no_text_makes_counting_fail(text: str) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(guarded(upstream, context=100_000)) as running:
        body = b'{"model": "m", "prompt": [%b]}' % orjson.dumps(text) if text != "\ud83d" else b'{"prompt": "\\ud83d"}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        assert (await running.ask(head + body)).status == (
            200 if text != "\ud83d" else 400
        )  # half a character is no text
    async with raw_upstream(answering(OK)) as upstream, edge(guarded(upstream, context=10)) as running:
        assert (await running.ask(head + body)).status == (422 if text != "\ud83d" else 400)


def asked(path: str, body: bytes, *fields: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: x", *fields, f"Content-Length: {len(body)}", "", "")
    return "\r\n".join(lines).encode() + body


def told(running: Any) -> dict[str, float]:
    """What the guard has counted, without zeros."""
    every = ("ok", "tripped", "truncated", "exempt", "unknown", "unreadable")
    name = "llm_request_context_length_total"
    counts = {each: running.worker._cells.counter(name, "", {"status": each}).value for each in every}
    return {status: count for status, count in counts.items() if count}


LONG = " the" * 3000


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (["a", LONG], "the longest prompt has about 3000"),
        ([[1] * 2040, [2]], "the longest prompt has about 2040"),
        (["a", [3] * 3000], "the longest prompt has about 3000"),
        ([" the" * 1500] * 3, ""),  # each has a context of its own
        ([[1] * 1700, [2] * 1700], ""),
    ],
)
async def test_of_several_prompts_the_longest_is_judged(prompt: Any, says: str) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(guarded(upstream)) as running:
        said = await running.ask(asked("/v1/completions", orjson.dumps({"model": "m", "prompt": prompt})))
        assert said.status == (422 if says else 200)
        assert says.encode() in said.body
        assert told(running) == ({"tripped": 1.0} if says else {"ok": 1.0})
        assert len(upstream.heads) == (not says)


async def test_many_short_inputs_are_not_one_long_one() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(guarded(upstream, reserve="0%")) as running:
        body = orjson.dumps({"model": "m", "input": ["water runs to the mill"] * 1000})
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        assert (await running.ask(head.encode() + body)).status == 200


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("short", 200),
        (" the" * 2048, 200),
        (LONG, 422),
        (["a", LONG], 422),
        ([[1] * 2049, [2]], 422),
        ([LONG[:6000]] * 9, 200),
    ],
)
async def test_inputs_of_embeddings_need_no_room_for_an_answer(value: Any, status: int) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(guarded(upstream)) as running:
        said = await running.ask(asked("/v1/embeddings", orjson.dumps({"model": "m", "input": value})))
        assert said.status == status
        if status == 422:
            error = orjson.loads(said.body)["error"]
            assert error["param"] == "input"
            assert error["message"].endswith("Shorten it.")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"])
@pytest.mark.parametrize(
    ("body", "fields", "status"),
    [
        (b'{"model": "m", "prompt": "\\ud800"}', (), 400),
        (b'{"model": "m", "prompt": "\xff"}', (), 400),
        (b'{"model": "m", "prompt": "a", "prompt": "b"}', (), 400),
        (b'[1]', (), 400),
        (b'prompt=a', ("Content-Type: application/x-www-form-urlencoded",), 400),
        (gzip.compress(b'{"model": "m", "prompt": "a"}'), ("Content-Encoding: gzip",), 415),
        (b'{"model": "m", "prompt": "a", "messages": [], "input": "a"}', ("Content-Encoding: x-own",), 415),
    ],
)  # fmt: skip
@pytest.mark.parametrize("guard", [{}, {"truncate": {}}])
async def test_what_cannot_be_read_is_refused(
    path: str, body: bytes, fields: tuple[str, ...], status: int, guard: dict[str, Any]
) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(guarded(upstream, **guard)) as running:
        said = await running.ask(asked(path, body, *fields))
        assert said.status == status
        assert said.get("accept-encoding") == ("identity" if status == 415 else None)
        assert told(running) == {"unreadable": 1.0}
        assert not upstream.heads


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", b'{"model": "m", "input": "a"}'),
        ("/v1/responses", b"none of ours"),
        ("/v1/completions", b'{"model": "m", "prompt_embeds": "AAAA"}'),
        ("/v1/embeddings", b'{"model": "m", "messages": [{"role": "user", "content": "a"}]}'),
    ],
)
async def test_what_is_not_judged_is_counted(path: str, body: bytes) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(guarded(upstream)) as running:
        assert (await running.ask(asked(path, body))).status == 200
        assert told(running) == {"unknown": 1.0}


@pytest.mark.parametrize("num", ["18446744073709551616", "1e30", "2049.0"])
async def test_huge_answers_are_huge(num: str) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(guarded(upstream)) as running:
        body = b'{"model": "m", "prompt": "a", "max_tokens": %b}' % num.encode()
        said = await running.ask(asked("/v1/completions", body))
        assert said.status == 422
        assert b"of which max_tokens asks" in said.body


async def test_what_was_said_is_counted() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(guarded(upstream)) as running:
        await running.ask(completion(10))
        await running.ask(completion(3000))
        cells = running.worker._cells
        told = {
            status: cells.counter("llm_request_context_length_total", "", {"status": status}).value
            for status in ("ok", "tripped", "exempt", "unknown")
        }
        assert told == {"ok": 1.0, "tripped": 1.0, "exempt": 0.0, "unknown": 0.0}
        route = running.config.routes[0].label
        tripped = cells.counter("llm_context_tripped_total", "", {"model": "other", "route": route})
        assert tripped.value == 1.0
