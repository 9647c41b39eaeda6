"""Start-up events, the first content, and failures: what an event of a stream is."""

from __future__ import annotations

import orjson
import pytest

from proxy.llm.first_content import Told, told_by


def chunk(delta: dict[str, object] | None = None, **choice: object) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": delta or {}, "finish_reason": None, **choice}]})


@pytest.mark.parametrize(
    "event",
    [
        b": ping\n\n",
        b"data:\n\n",
        b"data: [DONE]\n\n",
        b"event: start\nid: 7\n\n",
        chunk({"role": "assistant", "content": ""}) + b"\n\n",
        chunk({"role": "assistant", "content": None, "tool_calls": []}) + b"\r\n\r\n",
        chunk({}, logprobs={"content": []}) + b"\n\n",
        b'data: {"choices": [], "usage": {"prompt_tokens": 7}}\n\n',
        b'data:{"choices": [{"text": "", "finish_reason": null}],\ndata: "error": null}\n\n',
    ],
)
def test_what_shows_nothing_is_start_up(event: bytes) -> None:
    assert told_by(event) is Told.STARTING


@pytest.mark.parametrize(
    "event",
    [
        chunk({"content": "a"}) + b"\n\n",
        chunk({"reasoning_content": "hm"}) + b"\n\n",
        chunk({"refusal": "no"}) + b"\n\n",
        chunk({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}) + b"\n\n",
        chunk({}, text="a") + b"\n\n",
        chunk({}, finish_reason="stop") + b"\n\n",
        b"data: hello\n\n",
        b'data: {"type": "message_start"}\n\n',
        b"data: [1]\n\n",
        b'data: {"choices": [7]}\n\n',
    ],
)
def test_what_somebody_sees_is_content_and_what_nobody_knows_too(event: bytes) -> None:
    assert told_by(event) is Told.CONTENT


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error": {"message": "overloaded", "type": "server_error"}}\n\n',
        b'event: error\ndata: {"error": "out of memory"}\n\n',
        chunk({"content": ""}, finish_reason="error") + b"\n\n",
    ],
)
def test_an_error_says_that_there_will_be_none(event: bytes) -> None:
    assert told_by(event) is Told.FAILED
