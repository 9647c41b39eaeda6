"""Cutting is never silent: what was cut or lowered is named in a header and in the body."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fakes_engine import FakeDecoder, chat_model, engine

CONTEXT = 128
LONG_TOKEN = [b"x" * 20]  # so that more bytes than the context has tokens are looked at


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


LONG = [
    turn("system", "be short"),
    turn("user", "a" * 30),
    turn("assistant", "b" * 30),
    turn("user", "c" * 30),
    turn("assistant", "d" * 30),
    turn("user", "last"),
]


def seen_by(decoder: FakeDecoder) -> list[bytes]:
    """The prompts that the decoder reads."""
    seen: list[bytes] = []

    def look(rows: Any) -> None:
        seen.extend(bytes(token for token in row.tokens if token < 256) for row in rows if len(row.tokens) > 1)

    decoder.before_run = look
    return seen


async def test_a_conversation_loses_its_oldest_turns_only_when_that_is_allowed(tmp_path: Path) -> None:
    decoder = FakeDecoder(context=CONTEXT)
    async with engine(tmp_path, chat_model(decoder, extra=LONG_TOKEN)) as served:
        refused = await served.post(messages=LONG, max_tokens=5)
        whole = (await served.post("/tokenize", messages=LONG)).json["count"]
        seen = seen_by(decoder)
        cut = await served.post(messages=LONG, max_tokens=5, truncate=True)
        streamed = await served.post(messages=LONG, max_tokens=5, truncate=True, stream=True)
        fits = await served.post(messages=LONG[-1:], truncate=True)
    assert refused.status == 422
    assert cut.text == "last"
    assert (
        seen[0] == b"system\nbe short\nuser\n" + b"c" * 30 + b"\nassistant\n" + b"d" * 30 + b"\nuser\nlast\nassistant\n"
    )
    num_cut = whole - cut.json["usage"]["prompt_tokens"]
    assert num_cut == len("*user\n*\n*assistant\n*\n") + 60
    for answer in (cut, streamed):
        assert answer.headers["headrace-truncated-tokens"] == str(num_cut)
    assert cut.json["headrace"] == {"truncated_tokens": num_cut}
    assert all(event["headrace"] == {"truncated_tokens": num_cut} for event in streamed.events[:-1])
    assert "headrace" not in fits.json
    assert "headrace-truncated-tokens" not in fits.headers


async def test_no_more_turns_go_than_must_and_the_last_one_stays(tmp_path: Path) -> None:
    decoder = FakeDecoder(context=CONTEXT)
    async with engine(tmp_path, chat_model(decoder, extra=LONG_TOKEN)) as served:
        seen = seen_by(decoder)
        much = await served.post(messages=LONG, max_tokens=70, truncate=True)
        hopeless = await served.post(messages=[turn("user", "x" * 120)], max_tokens=10, truncate=True)
        alone = await served.post(messages=[*LONG[1:5], turn("user", "y" * 90)], max_tokens=60, truncate=True)
    assert seen[0] == b"system\nbe short\nuser\nlast\nassistant\n"
    assert much.text == "last"
    assert (hopeless.status, hopeless.json["error"]["code"]) == (422, "context_length_exceeded")
    # What cannot be cut any more runs when it fits at all, and the answer's limit is lowered by name.
    assert seen[1].startswith(b"user\nyyy")
    assert alone.json["headrace"]["max_tokens"] == CONTEXT - alone.json["usage"]["prompt_tokens"] < 60


async def test_a_text_loses_its_oldest_tokens(tmp_path: Path) -> None:
    decoder = FakeDecoder(bare=lambda read: read[-1] + 1, context=CONTEXT)
    async with engine(tmp_path, chat_model(decoder, extra=LONG_TOKEN)) as served:
        prompt = "x" * 200 + "a" * 100
        text = await served.post("/v1/completions", messages=None, prompt=prompt, max_tokens=8, truncate=True)
        ids = await served.post(
            "/v1/completions", messages=None, prompt=list(prompt.encode()), max_tokens=8, truncate=True, echo=True
        )
    assert text.json["usage"]["prompt_tokens"] == CONTEXT - 8
    assert text.json["choices"][0]["text"] == "bcdefghi"
    assert text.json["headrace"] == ids.json["headrace"] == {"truncated_tokens": 300 - (CONTEXT - 8)}
    assert ids.json["choices"][0]["text"] == "x" * 20 + "a" * 100 + "bcdefghi"


async def test_L16_a_max_tokens_that_was_lowered_is_named(tmp_path: Path) -> None:
    decoder = FakeDecoder(lambda read, chosen: ord("y"), context=CONTEXT)
    async with engine(tmp_path, chat_model(decoder)) as served:
        lowered = await served.post(max_tokens=1000)
        streamed = await served.post(max_tokens=1000, stream=True)
        absent = await served.post()
        exact = await served.post(max_tokens=CONTEXT - absent.json["usage"]["prompt_tokens"])
    room = CONTEXT - lowered.json["usage"]["prompt_tokens"]
    assert lowered.json["usage"]["completion_tokens"] == room
    assert lowered.headers["headrace-max-tokens"] == streamed.headers["headrace-max-tokens"] == str(room)
    assert lowered.json["headrace"] == {"max_tokens": room}
    for answer in (absent, exact):
        assert "headrace" not in answer.json
        assert answer.json["usage"]["completion_tokens"] == room
