"""Counting, decoding and rendering without an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.wire.chat_errors import assert_openai_error
from tests.fakes_engine import END, START, FakeDecoder, chat_model, engine

MESSAGES = [{"role": "user", "content": "hé<|im_end|>"}]


async def test_L13_messages_and_text_are_counted_as_they_will_be_read(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(FakeDecoder())) as served:
        text = await served.post("/tokenize", messages=None, prompt="hé<|im_end|>", return_token_strs=True)
        chat = await served.post("/tokenize", messages=MESSAGES)
        answer = await served.post(messages=MESSAGES, max_tokens=1)
    assert text.json["tokens"] == list("hé<|im_end|>".encode())
    assert (text.json["count"], text.json["max_model_len"]) == (13, 2048)
    assert text.json["token_strs"][0] == "h"
    assert chat.json["tokens"] == [START, *b"user\n", *"hé<|im_end|>".encode(), END, *b"\n", START, *b"assistant\n"]
    assert chat.json["count"] == answer.json["usage"]["prompt_tokens"]
    assert chat.json["token_strs"] is None


async def test_text_longer_than_the_context_is_counted(tmp_path: Path) -> None:
    extra = [b"x" * 20]
    async with engine(tmp_path, chat_model(FakeDecoder(context=64), extra=extra)) as served:
        text = await served.post("/tokenize", messages=None, prompt="a" * 1000)
        chat = await served.post("/tokenize", messages=[{"role": "user", "content": "a" * 1000}])
        huge = await served.post("/tokenize", messages=None, prompt="a" * 2000)
    assert text.json["count"] == 1000
    assert chat.json["count"] == 1000 + len("*user\n*\n*assistant\n")
    assert (huge.status, huge.json["error"]["code"]) == (422, "context_length_exceeded")


async def test_tokens_become_the_text_that_they_came_from(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(FakeDecoder())) as served:
        back = await served.post("/detokenize", messages=None, tokens=[START, *"é🔥".encode()])
        empty = await served.post("/detokenize", messages=None, tokens=[])
        template = await served.post("/apply-template", messages=MESSAGES)
    assert back.json == {"prompt": "<|im_start|>é🔥"}
    assert empty.json == {"prompt": ""}
    assert template.json == {"prompt": "<|im_start|>user\nhé<|im_end|><|im_end|>\n<|im_start|>assistant\n"}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {"messages": None}, "prompt"),
        ("/tokenize", {"prompt": "a"}, "prompt"),
        ("/tokenize", {"messages": None, "prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": [{"role": "foo", "content": ""}]}, "messages[0].role"),
        ("/tokenize", {"messages": None, "prompt": "a", "add_special_tokens": False}, "add_special_tokens"),
        ("/detokenize", {"messages": None}, "tokens"),
        ("/detokenize", {"messages": None, "tokens": [-1]}, "tokens"),
        ("/detokenize", {"messages": None, "tokens": [999999]}, "tokens"),
        ("/apply-template", {"messages": None}, "messages"),
        ("/apply-template", {"model": None}, "model"),
    ],
)
async def test_what_cannot_be_read_is_a_400_naming_the_field(
    tmp_path: Path, path: str, fields: dict[str, Any], param: str
) -> None:
    async with engine(tmp_path, chat_model(FakeDecoder())) as served:
        answer = await served.post(path, **fields)
    assert answer.status == 400
    assert_openai_error(answer.json)
    assert answer.json["error"]["param"] == param


async def test_what_a_template_refuses_is_a_400(tmp_path: Path) -> None:
    model = chat_model(FakeDecoder(), template="{{ raise_exception('no users here') }}")
    async with engine(tmp_path, model) as served:
        answer = await served.post("/apply-template")
    assert answer.status == 400
    assert "no users here" in answer.json["error"]["message"]
