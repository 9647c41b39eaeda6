"""Several choices, log probabilities, penalties and what else changes which tokens are chosen, over HTTP."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.fakes_engine import END, FIRST_EXTRA, FakeDecoder, chat_model, engine, play


def by_choice(events: list[Any]) -> dict[int, list[Any]]:
    """A stream's chunks by the index of their only choice, the usage left out."""
    chunks: dict[int, list[Any]] = {}
    for event in events[:-1]:
        for choice in event["choices"]:
            assert len(event["choices"]) == 1
            chunks.setdefault(choice["index"], []).append(choice)
    return chunks


@pytest.mark.parametrize("n", [1, 3, 8])
async def test_L08_each_choice_has_its_index_and_ends_once(tmp_path: Path, n: int) -> None:
    decoder = FakeDecoder(flat=True, slots=3)
    ask = {"n": n, "max_tokens": 30, "stop": ["e"], "seed": 4}
    async with engine(tmp_path, chat_model(decoder)) as served:
        whole = await served.post(**ask)
        streamed = await served.post(**ask, stream=True, stream_options={"include_usage": True})
    choices = whole.json["choices"]
    assert [choice["index"] for choice in choices] == list(range(n))
    texts = [choice["message"]["content"] for choice in choices]
    assert len(set(texts)) == n
    chunks = by_choice(streamed.events)
    assert sorted(chunks) == list(range(n))
    for index, mine in chunks.items():
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert [chunk["finish_reason"] for chunk in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == choices[index]["finish_reason"] in ("stop", "length")
        assert "".join(chunk["delta"].get("content", "") for chunk in mine) == texts[index]
    usage = streamed.events[-2]
    assert usage["choices"] == []
    assert usage["usage"] == whole.json["usage"]
    assert usage["usage"]["prompt_tokens"] == len("*user\nhi*\n*assistant\n")
    assert usage["usage"]["completion_tokens"] >= sum(map(len, texts))


async def test_L08_choices_of_temperature_0_are_equal_and_a_seeds_first_choice_is_the_only_one(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(FakeDecoder(flat=True))) as served:
        greedy = await served.post(n=3, temperature=0)
        alone = await served.post(seed=1, max_tokens=20)
        three = await served.post(seed=1, max_tokens=20, n=3)
    assert [choice["message"]["content"] for choice in greedy.json["choices"]] == ["hi"] * 3
    assert alone.text == three.text


async def test_L08_more_choices_than_places_are_refused_and_take_none(tmp_path: Path) -> None:
    model = chat_model(FakeDecoder(slots=2), max_queue=3)
    async with engine(tmp_path, model) as served:
        beyond = await served.post(n=6)
        fits = await served.post(n=5)
        assert model.admission.num_inside == 0
    assert (beyond.status, beyond.json["error"]["param"]) == (400, "n")
    assert len(fits.json["choices"]) == 5


async def test_a_row_without_a_distribution_fails_all_choices_of_its_request(tmp_path: Path) -> None:
    decoder = FakeDecoder(nan_when=lambda read: ord("!") in read)
    model = chat_model(decoder)
    async with engine(tmp_path, model) as served:
        bad = await served.post(n=3, messages=[{"role": "user", "content": "bad!"}])
        assert (await served.post()).text == "hi"
    assert bad.status == 500
    assert not decoder.held


@pytest.mark.parametrize("stream", [False, True])
async def test_L07_log_probabilities_have_their_tokens_bytes_and_best(tmp_path: Path, stream: bool) -> None:
    text = "é!"
    async with engine(tmp_path, chat_model(FakeDecoder())) as served:
        ask = {"messages": [{"role": "user", "content": text}], "logprobs": True, "top_logprobs": 3, "stream": stream}
        answer = await served.post(**ask)
        without = await served.post(messages=ask["messages"], stream=stream)
    if stream:
        content = [
            entry
            for chunk in by_choice(answer.events)[0]
            for entry in (chunk["logprobs"] or {"content": []})["content"]
        ]
        assert all(chunk["logprobs"] is None for chunk in by_choice(without.events)[0])
        assert [chunk["finish_reason"] for chunk in by_choice(answer.events)[0]][-1] == "stop"
    else:
        content = answer.json["choices"][0]["logprobs"]["content"]
        assert answer.json["choices"][0]["logprobs"]["refusal"] is None
        assert without.json["choices"][0]["logprobs"] is None
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == text
    for entry in content:
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0] == {key: entry[key] for key in ("token", "logprob", "bytes")}
        assert math.isclose(entry["logprob"], 0, abs_tol=1e-6)
        assert entry["top_logprobs"][1]["logprob"] < -30


async def test_a_control_token_among_the_best_has_its_name_and_no_bytes(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(FakeDecoder())) as served:
        ask = {"logprobs": True, "top_logprobs": 1, "ignore_eos": True, "max_tokens": 3}
        answer = await served.post(**ask)
    assert answer.text == "hi"
    assert answer.json["choices"][0]["finish_reason"] == "length"
    last = answer.json["choices"][0]["logprobs"]["content"][-1]
    assert (last["token"], last["bytes"]) == ("<|im_end|>", None)


async def test_stop_token_ids_end_an_answer_and_min_tokens_hold_every_end_back(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(FakeDecoder(play(list(b"abcabc"))))) as served:
        stopped = await served.post(stop_token_ids=[ord("c")])
        still_its_own = await served.post(stop_token_ids=[ord("z")])
        held = await served.post(min_tokens=3, stop=["b"], temperature=0)
        longer = await served.post(min_tokens=8, temperature=0, max_tokens=9)
    assert (stopped.text, stopped.json["choices"][0]["finish_reason"]) == ("ab", "stop")
    assert still_its_own.text == "abcabc"
    assert held.text == "abca"
    assert longer.text.startswith("abcabc")
    assert longer.json["usage"]["completion_tokens"] == 9


async def test_bias_and_penalties_reach_the_sampler(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(FakeDecoder(lambda read, chosen: ord("y")))) as served:
        biased = await served.post(temperature=0, max_tokens=3, logit_bias={str(ord("z")): 100})
        banned = await served.post(temperature=0, max_tokens=3, logit_bias={str(ord("y")): -100})
        plain = await served.post(temperature=0, max_tokens=40)
        frequency = await served.post(temperature=0, max_tokens=9, frequency_penalty=2, logit_bias={"65": 30})
        repetition = await served.post(temperature=0, max_tokens=2, repetition_penalty=10, logit_bias={"65": 25})
    assert biased.text == "zzz"
    assert "y" not in banned.text
    assert plain.text == "y" * 40
    assert frequency.text == "yyyyyAyAy"
    assert repetition.text == "yA"


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
async def test_L19_a_token_that_the_model_does_not_have_is_a_400(tmp_path: Path, field: str) -> None:
    async with engine(tmp_path, chat_model(FakeDecoder())) as served:
        answer = await served.post(**{field: {"999999": 100} if field == "logit_bias" else [999999]})
        assert (await served.post()).text == "hi"
    assert (answer.status, answer.json["error"]["param"]) == (400, field)


async def test_log_probabilities_of_what_a_stop_string_cut_off_are_not_told(tmp_path: Path) -> None:
    extra = [b"one ", b"st", b"op"]
    script = play([FIRST_EXTRA, FIRST_EXTRA + 1, FIRST_EXTRA + 2, END])
    async with engine(tmp_path, chat_model(FakeDecoder(script), extra=extra)) as served:
        answer = await served.post(logprobs=True, stop=["stop"])
        streamed = await served.post(logprobs=True, stop=["stop"], stream=True)
    assert [entry["token"] for entry in answer.json["choices"][0]["logprobs"]["content"]] == ["one "]
    assert b"st" not in b"".join(line for line in streamed.raw.split(b"\n") if b"content" in line).replace(
        b"assistant", b""
    )
