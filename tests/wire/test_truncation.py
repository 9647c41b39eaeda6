"""Prompts that are made to fit at the edge: what the upstream gets, and that the answer says so."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.wire.harness import RawUpstream, app, edge, raw_upstream
from tests.wire.models import DONE, STREAM, Recording, answer, chat, chunks, keys_file, text

JSON = answer(b"200 OK", b'{"id": "a", "choices": [], "usage": {"prompt_tokens": 9}}')
TURNS = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": " one" * 100},
    {"role": "assistant", "content": " two" * 100},
    {"role": "user", "content": "three"},
]


def cutting(upstream: RawUpstream, **guard: Any) -> dict[str, Any]:
    config = app(upstream.port, kind="openai")
    guard = {"context": 200, "reserve": "10%", "margin": "0%", **guard}
    config["routes"][0]["policies"] = {"context_guard": guard}
    return config


async def test_the_oldest_turns_go_and_the_answer_says_so() -> None:
    served = Recording(JSON)
    async with raw_upstream(served) as upstream, edge(cutting(upstream, truncate={})) as running:
        said = await running.ask(chat(messages=TURNS, stream=False, top_p=1.0))
        fits = await running.ask(chat(messages=TURNS[-1:], stream=False))
    assert served.bodies[0]["messages"] == [TURNS[0], TURNS[3]]
    assert b'"top_p":1.0' in served.raw[0]
    assert said.get("headrace-truncated-tokens") == "210"  # 200 words, and what two messages cost
    assert orjson.loads(said.body)["headrace"] == {"truncated_tokens": 210}
    assert fits.get("headrace-truncated-tokens") is None
    assert b"headrace" not in fits.body
    assert fits.raw.endswith(fits.body)


async def test_each_chunk_of_a_stream_says_so() -> None:
    served = Recording(STREAM + chunks(text(b"a")[:20], text(b"a")[20:] + text(b"b"), DONE))
    async with raw_upstream(served) as upstream, edge(cutting(upstream, truncate={})) as running:
        said = await running.ask(chat("chat", "Accept-Encoding: gzip", messages=TURNS))
        assert b"accept-encoding" not in upstream.received.lower()
    assert said.body.count(b'{"headrace":{"truncated_tokens":210},"choices"') == 2
    assert said.body.endswith(DONE)
    assert said.get("headrace-truncated-tokens") == "210"


@pytest.mark.parametrize(("inside", "status"), [("start", 200), ("middle", 200), ("end", 200), (None, 422)])
async def test_a_text_that_is_too_long_by_itself(inside: str | None, status: int) -> None:
    served = Recording(JSON)
    document = "".join(f"This is line {i}.\n" for i in range(100))
    how = {"inside": inside}
    async with raw_upstream(served) as upstream, edge(cutting(upstream, truncate=how)) as running:
        said = await running.ask(chat(messages=[{"role": "user", "content": document}], stream=False))
    assert said.status == status
    if status == 422:
        assert orjson.loads(said.body)["error"]["code"] == "context_length_exceeded"
        assert not served.bodies
        return
    left = served.bodies[0]["messages"][0]["content"]
    assert left.startswith("This is line 0.") is (inside != "start")
    assert left.endswith("This is line 99.\n") is (inside != "end")
    assert "[\u2026]" in left


async def test_a_window_slides_over_a_document() -> None:
    served = Recording(JSON)
    document = "".join(f"line {i}\n" for i in range(100))
    window = {"max_len": 100, "stride": 50}
    async with raw_upstream(served) as upstream, edge(cutting(upstream, window=window)) as running:
        said = await running.ask(chat(messages=[{"role": "user", "content": document}], stream=False))
    left = served.bodies[0]["messages"][0]["content"]
    assert document.endswith(left)
    assert left.startswith("line ")
    assert len(left) < len(document) / 2
    assert said.get("headrace-truncated-tokens") is not None


async def test_tokens_of_a_completion() -> None:
    served = Recording(JSON)
    body = orjson.dumps({"model": "m", "prompt": list(range(500)), "max_tokens": 50})
    raw = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with raw_upstream(served) as upstream, edge(cutting(upstream, truncate={})) as running:
        said = await running.ask(raw)
    assert served.bodies[0]["prompt"] == list(range(350, 500))
    assert said.get("headrace-truncated-tokens") == "350"


async def test_keys_that_may_pass_send_what_they_like() -> None:
    served = Recording(JSON)
    async with raw_upstream(served) as upstream:
        config = cutting(upstream, truncate={})
        config["routes"][0]["policies"]["auth"] = {"keys": "keys.yaml"}
        async with edge(config, materials={"keys.yaml": keys_file(context=True)}) as running:
            said = await running.ask(chat("m", "Authorization: Bearer hr_test", messages=TURNS, stream=False))
    assert said.status == 200
    assert served.bodies[0]["messages"] == TURNS


async def test_what_the_system_says_is_never_cut_and_the_refusal_says_so() -> None:
    served = Recording(JSON)
    talk = [{"role": "system", "content": "Be brief. " * 100}, {"role": "user", "content": "hi"}]
    async with raw_upstream(served) as upstream, edge(cutting(upstream, truncate={"inside": "middle"})) as running:
        said = await running.ask(chat(messages=talk, stream=False))
    assert said.status == 422
    assert b"What the system says, tools and their calls are not cut here" in said.body
    assert not served.bodies


async def test_an_answer_that_is_too_long_is_refused_all_the_same() -> None:
    served = Recording(JSON)
    async with raw_upstream(served) as upstream, edge(cutting(upstream, truncate={})) as running:
        said = await running.ask(chat(messages=TURNS, stream=False, max_tokens=200))
        assert said.status == 422
        assert orjson.loads(said.body)["error"]["message"].endswith(
            "leaves none for a prompt. Lower max_tokens."
        )  # all that helps
        cells = running.worker._cells
        told = cells.counter("llm_request_context_length_total", "", {"status": "truncated"})
        assert told.value == 0.0
        await running.ask(chat(messages=TURNS, stream=False))
        assert told.value == 1.0
    assert len(served.bodies) == 1
