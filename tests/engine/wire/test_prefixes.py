"""What a request need not read, as its client sees it: in the usage, by API key, and in the metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.wire.metrics import OF_CHAT
from tests.fakes_engine import Answer, Engine, FakeDecoder, chat_model, engine

CHAT = "/v1/chat/completions"


async def ask(served: Engine, text: str, key: str = "", **fields: Any) -> Answer:
    messages = [{"role": "system", "content": "s" * 100}, {"role": "user", "content": text}]
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": 2, **fields}).encode()
    return await served.send(CHAT, body, **({"headrace-key": key} if key else {}))


def cached(answer: Answer) -> int:
    return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_the_usage_says_what_was_not_read_again(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(FakeDecoder(), prefix_ttl_s=60.0)) as served:
        first = await ask(served, "hi")
        assert cached(first) == 0
        num_shared = first.json["usage"]["prompt_tokens"] - len(f"hi{'*'}\n{'*'}assistant\n")
        second = await ask(served, "you")
        assert (second.text, cached(second)) == ("yo", num_shared)
        streamed = await ask(served, "hi", stream=True, stream_options={"include_usage": True})
        assert streamed.events[-2]["usage"]["prompt_tokens_details"]["cached_tokens"] == num_shared


async def test_several_choices_of_a_prompt_count_what_the_first_one_read(tmp_path: Path) -> None:
    decoder = FakeDecoder()
    async with engine(tmp_path, chat_model(decoder, prefix_ttl_s=60.0)) as served:
        answer = await ask(served, "hi", n=3)
        assert [choice["message"]["content"] for choice in answer.json["choices"]] == ["hi"] * 3
        assert cached(answer) == 0
        num_read = sum(count for run in decoder.runs for _, count in run)
        assert num_read < 1.5 * answer.json["usage"]["prompt_tokens"]


async def test_another_key_reads_for_itself_unless_all_share(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(FakeDecoder(), prefix_ttl_s=60.0)) as served:
        assert [cached(await ask(served, "hi", key)) > 0 for key in ("a", "b", "a", "")] == [False, False, True, False]
    shared = chat_model(FakeDecoder(), prefix_ttl_s=60.0, prefix_sharing="all")
    async with engine(tmp_path, shared) as served:
        assert [cached(await ask(served, "hi", key)) > 0 for key in ("a", "b", "")] == [False, True, True]


async def test_the_metrics_say_what_the_memory_holds_and_what_was_reused(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(FakeDecoder(), prefix_ttl_s=60.0)) as served:
        await ask(served, "hi")
        warm = await ask(served, "you")
        page = (await served.get("/metrics")).raw.decode()
        assert f'headrace_engine_prefix_tokens_total{{model="m"}} {cached(warm)}.0' in page
        assert 'headrace_engine_prefix_hits_total{model="m"} 1.0' in page
        assert 'headrace_engine_prefixes{model="m"} 1.0' in page
        for name in ("kv_budget_bytes", "kv_bytes", "kv_waste_ratio", "kv_fragmentation_ratio"):
            assert f'headrace_engine_{name}{{model="m"}}' in page
        assert set(OF_CHAT) <= served.serving.get("m").statistics().keys()
