"""Completions: prompts of every form, echo, log probabilities, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.wire.chat_errors import assert_openai_error
from tests.fakes_engine import Answer, Engine, FakeDecoder, chat_model, engine


def decoder(context: int = 2048) -> FakeDecoder:
    """Goes on with the alphabet."""
    return FakeDecoder(bare=lambda read: read[-1] + 1, context=context)


async def complete(served: Engine, **fields: Any) -> Answer:
    return await served.post("/v1/completions", messages=None, **fields)


def texts(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.raw
    assert [choice["index"] for choice in answer.json["choices"]] == list(range(len(answer.json["choices"])))
    return [choice["text"] for choice in answer.json["choices"]]


async def test_a_prompt_is_text_or_ids_or_several_of_them(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(decoder())) as served:
        text = await complete(served, prompt="a", max_tokens=3)
        ids = await complete(served, prompt=[ord("a")], max_tokens=3)
        mixed = await complete(served, prompt=["xa", [ord("e")]], max_tokens=3, n=2)
        default = await complete(served, prompt="0")
    assert texts(text) == texts(ids) == ["bcd"]
    assert texts(mixed) == ["bcd", "bcd", "fgh", "fgh"]
    usage = {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}
    assert mixed.json["usage"] == {**usage, "prompt_tokens_details": {"cached_tokens": 0}}
    assert default.json["usage"]["completion_tokens"] == 16
    assert (text.json["object"], text.json["id"][:5]) == ("text_completion", "cmpl-")
    assert text.json["choices"][0]["finish_reason"] == "length"


async def test_a_stream_of_completions_ends_each_choice_once(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(decoder())) as served:
        ask = {"prompt": ["a", "m"], "max_tokens": 3, "echo": True, "stream_options": {"include_usage": True}}
        answer = await complete(served, **ask, stream=True)
        whole = await complete(served, prompt=["a", "m"], max_tokens=3, echo=True)
    *chunks, usage, done = answer.events
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"] == whole.json["usage"]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    told = ["", ""]
    reasons: list[list[Any]] = [[], []]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        told[choice["index"]] += choice["text"]
        reasons[choice["index"]].append(choice["finish_reason"])
    assert told == texts(whole) == ["abcd", "mnop"]
    assert [(each[:-1], each[-1]) for each in reasons] == [([None] * (len(each) - 1), "length") for each in reasons]


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_in_the_older_form(tmp_path: Path, stream: bool) -> None:
    async with engine(tmp_path, chat_model(decoder())) as served:
        answer = await complete(served, prompt="a", max_tokens=3, logprobs=2, stream=stream)
    bodies = answer.events[:-1] if stream else [answer.json]
    parts = [choice["logprobs"] for body in bodies for choice in body["choices"] if choice["logprobs"]]
    told = {name: [each for part in parts for each in part[name]] for name in parts[0]}
    assert told["tokens"] == ["b", "c", "d"]
    assert told["text_offset"] == [0, 1, 2]
    assert all(abs(logprob) < 1e-6 for logprob in told["token_logprobs"])
    assert [next(iter(best)) for best in told["top_logprobs"]] == ["b", "c", "d"]
    assert [len(best) for best in told["top_logprobs"]] == [2, 2, 2]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [""]}, "prompt[0]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [999999]}, "prompt"),
        ({"prompt": ["a", [999999]]}, "prompt[1]"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": ["a"] * 33, "n": 2}, "prompt"),
        ({"prompt": "a", "max_tokens": 0, "echo": True}, "max_tokens"),
        ({"prompt": "a", "logprobs": 10**6}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "logprobs": 1, "echo": True}, "echo"),
        ({"prompt": "a", "top_p": 0}, "top_p"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "x"}]}, "messages"),
    ],
)
async def test_L11_a_degenerate_prompt_is_a_400_and_the_next_is_served(
    tmp_path: Path, fields: dict[str, Any], param: str
) -> None:
    async with engine(tmp_path, chat_model(decoder())) as served:
        answer = await served.post("/v1/completions", **{"messages": None, **fields})
        after = await complete(served, prompt="a", max_tokens=1)
    assert answer.status == 400
    assert_openai_error(answer.json)
    assert answer.json["error"]["param"] == param
    assert texts(after) == ["b"]


async def test_L11_numbers_that_json_cannot_hold_are_a_400(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(decoder())) as served:
        for raw in (b"1e400", b"NaN", b"1" * 5000):
            answer = await served.send("/v1/completions", b'{"model":"m","prompt":"a","temperature":' + raw + b"}")
            assert answer.status == 400
            assert_openai_error(answer.json)


async def test_L16_a_prompt_beyond_the_context_is_a_422_naming_it(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(decoder(context=64))) as served:
        answers = [
            await complete(served, prompt="a" * 64),
            await complete(served, prompt=["a", [1] * 64]),
            await complete(served, prompt="a" * 100000),
        ]
        last = await complete(served, prompt="a" * 63)
    for answer, where in zip(answers, ["prompt", "prompt[1]", "prompt"], strict=True):
        assert answer.status == 422
        assert answer.json["error"]["code"] == "context_length_exceeded"
        assert answer.json["error"]["param"] == where
        assert "64" in answer.json["error"]["message"]
    assert texts(last) == ["b"]


async def test_L13_L14_a_prompts_text_never_becomes_a_control_token(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(decoder())) as served:
        answer = await complete(served, prompt="<|im_end|>", max_tokens=1, echo=True)
        ids = await complete(served, prompt=[257, 97], max_tokens=1, echo=True)
    assert texts(answer) == ["<|im_end|>?"]
    assert answer.json["usage"]["prompt_tokens"] == len("<|im_end|>")
    assert texts(ids) == ["<|im_end|>ab"]
    assert ids.json["usage"]["prompt_tokens"] == 2
