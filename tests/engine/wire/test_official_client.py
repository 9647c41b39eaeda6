"""The official client on the engine's own socket: what it parses, iterates and raises."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from tests.fakes_engine import FakeDecoder, chat_model, engine

HI: Any = [{"role": "user", "content": "hi"}]


@contextlib.asynccontextmanager
async def client_of(tmp_path: Path, decoder: FakeDecoder, **settings: Any) -> AsyncIterator[AsyncOpenAI]:
    async with engine(tmp_path, chat_model(decoder, **settings)) as served:
        http = httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=served.socket_path))
        async with AsyncOpenAI(base_url="http://e/v1", api_key="k", max_retries=0, http_client=http) as client:
            yield client


async def gather_into(told: list[str], stream: Any) -> None:
    async for chunk in stream:
        told.append(chunk.choices[0].delta.content or "")


async def test_L01_L08_choices_arrive_by_index_and_usage_at_the_end(tmp_path: Path) -> None:
    async with client_of(tmp_path, FakeDecoder(flat=True)) as client:
        ask: Any = {"model": "m", "messages": HI, "n": 3, "seed": 5, "max_tokens": 20, "stop": ["e"]}
        whole = await client.chat.completions.create(**ask)
        stream = await client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        *chunks, last = [chunk async for chunk in stream]
    texts = dict.fromkeys(range(3), "")
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert (last.choices, last.usage) == ([], whole.usage)


async def test_L07_the_clients_own_accumulator_takes_the_stream(tmp_path: Path) -> None:
    async with client_of(tmp_path, FakeDecoder()) as client:
        async with client.chat.completions.stream(model="m", messages=HI, logprobs=True, top_logprobs=2) as stream:
            events = [event.type async for event in stream]
            final = await stream.get_final_completion()
        whole = await client.chat.completions.create(model="m", messages=HI, logprobs=True, top_logprobs=2)
    assert {"chunk", "content.delta", "content.done", "logprobs.content.done"} <= set(events)
    assert final.choices[0].message.content == whole.choices[0].message.content == "hi"
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert final.choices[0].logprobs is not None
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.content is not None
    assert final.choices[0].logprobs.content == whole.choices[0].logprobs.content
    assert [entry.token for entry in whole.choices[0].logprobs.content] == ["h", "i"]
    assert [len(entry.top_logprobs) for entry in whole.choices[0].logprobs.content] == [2, 2]


async def test_L04_two_choices_of_emoji_in_a_batch_of_requests_stay_whole(tmp_path: Path) -> None:
    text = "🔥👩‍👩‍👧สวัสดี\ufffd"
    async with client_of(tmp_path, FakeDecoder()) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": text}], n=2, stream=True
        )
        told = {0: "", 1: ""}
        async for chunk in stream:
            told[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert told == {0: text, 1: text}


async def test_completions_are_parsed_whole_and_streamed(tmp_path: Path) -> None:
    async with client_of(tmp_path, FakeDecoder(bare=lambda read: read[-1] + 1)) as client:
        whole = await client.completions.create(model="m", prompt=["a", "m"], max_tokens=3, logprobs=1)
        stream = await client.completions.create(model="m", prompt="a", max_tokens=3, stream=True)
        pieces = [chunk.choices[0] async for chunk in stream]
    assert [choice.text for choice in whole.choices] == ["bcd", "nop"]
    assert [choice.finish_reason for choice in whole.choices] == ["length", "length"]
    assert whole.choices[1].logprobs is not None
    assert whole.choices[1].logprobs.tokens == ["n", "o", "p"]
    assert "".join(piece.text for piece in pieces) == "bcd"
    assert [piece.finish_reason for piece in pieces] == [None, None, None, "length"]


async def test_L05_what_is_none_is_absent(tmp_path: Path) -> None:
    nothing: Any = dict.fromkeys(
        ["temperature", "top_p", "max_tokens", "stop", "seed", "n", "logprobs", "top_logprobs", "logit_bias", "stream"]
    )
    async with client_of(tmp_path, FakeDecoder()) as client:
        answer = await client.chat.completions.create(model="m", messages=HI, **nothing)
    assert answer.choices[0].message.content == "hi"


@pytest.mark.parametrize(
    ("fields", "error", "param", "code"),
    [
        ({"n": 1000}, openai.BadRequestError, "n", None),
        ({"temperature": 2.1}, openai.BadRequestError, "temperature", None),
        ({"logit_bias": {"999999": 100}}, openai.BadRequestError, "logit_bias", None),
        ({"extra_body": {"no_such_field": 1}}, openai.BadRequestError, "no_such_field", "unsupported_parameter"),
        ({"model": "other"}, openai.NotFoundError, "model", "model_not_found"),
        (
            {"messages": [{"role": "user", "content": "x" * 3000}]},
            openai.UnprocessableEntityError,
            "messages",
            "context_length_exceeded",
        ),
        ({"messages": [{"role": "user", "content": "bad!"}]}, openai.InternalServerError, None, "engine_failed"),
    ],
)
async def test_L17_an_error_has_the_clients_type_with_param_and_code(
    tmp_path: Path, fields: dict[str, Any], error: type[openai.APIStatusError], param: str | None, code: str | None
) -> None:
    decoder = FakeDecoder(nan_when=lambda read: ord("!") in read)
    async with client_of(tmp_path, decoder) as client:
        ask: Any = {"model": "m", "messages": HI, **fields}
        for stream in (False, True):
            with pytest.raises(error) as caught:
                await client.chat.completions.create(**ask, stream=stream)
            assert (caught.value.param, caught.value.code) == (param, code)
        after = await client.chat.completions.create(model="m", messages=HI)
    assert after.choices[0].message.content == "hi"


async def test_L17_an_error_in_mid_stream_is_raised_by_the_client(tmp_path: Path) -> None:
    decoder = FakeDecoder(nan_when=lambda read: read[-1:] == [ord("!")])
    async with client_of(tmp_path, decoder) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "abc!d"}], stream=True
        )
        told: list[str] = []
        with pytest.raises(openai.APIError) as caught:
            await gather_into(told, stream)
    assert "".join(told) == "abc!"
    assert caught.value.code == "engine_failed"
