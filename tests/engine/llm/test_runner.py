"""The lane: what a step does to its sequences when all goes well, and when it does not."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

import pytest

from engine.errors import RequestError
from engine.llm.chat import ChatModel
from engine.llm.recipe import Recipe
from engine.llm.sampling import Sampling
from engine.llm.sequence import Progress, Sequence
from tests.fakes_engine import FakeDecoder, chat_model, echo


def ask(model: ChatModel, text: str) -> Sequence:
    tokens = model.prompts._template.encode([{"role": "user", "content": text}])
    job = model.sequence(tokens, Recipe(Sampling(temperature=0)), 0, lambda event: None)
    model.lane.add(job)
    return job


def step(model: ChatModel, allowance_s: float = 1.0) -> list[tuple[Any, Any]]:
    planned = model.lane.plan(0.0, allowance_s)
    assert planned is not None
    try:
        return list(planned.run())
    except RuntimeError as error:
        return list(planned.fail(error))


def test_a_step_reads_a_prompt_and_decodes_beside_it() -> None:
    decoder = FakeDecoder()
    model = chat_model(decoder)
    first = ask(model, "ab")
    assert step(model) == [(first, Progress("a"))]
    assert model.lane.decoding()
    second = ask(model, "xy")
    assert step(model) == [(first, Progress("b")), (second, Progress("x"))]
    assert step(model) == [(first, Progress("", "stop")), (second, Progress("y"))]
    assert step(model) == [(second, Progress("", "stop"))]
    assert not model.lane.ready(0.0)
    assert not decoder.held
    assert (model.lane.num_output_tokens, model.lane.num_prompt_tokens) == (6, 2 * first.num_prompt_tokens)


def test_a_step_that_fails_ends_its_sequences_and_gives_their_slots_back() -> None:
    decoder = FakeDecoder(slots=2)
    model = chat_model(decoder)
    jobs = [ask(model, text) for text in "abc"]

    def fail(rows: SequenceOf[Any]) -> None:
        raise RuntimeError("out of memory at 0x7f")

    decoder.before_run = fail
    failed = step(model)
    assert [job for job, _ in failed] == jobs[:2]
    assert all(isinstance(event, RequestError) and "0x7f" not in event.message for _, event in failed)
    decoder.before_run = lambda rows: None
    assert step(model) == [(jobs[2], Progress("c"))]
    assert jobs[2].slot == 0


def test_O08_a_decoder_that_answers_for_another_number_of_rows_fails_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = FakeDecoder()
    model = chat_model(decoder)
    jobs = [ask(model, text) for text in "ab"]
    monkeypatch.setattr(decoder, "run", lambda rows: [[decoder.logits_of(ord("a"))]])
    failed = step(model)
    assert [job for job, _ in failed] == jobs
    assert all(isinstance(event, RequestError) for _, event in failed)
    assert not model.lane.scheduler.running


def test_a_dropped_sequence_gives_its_slot_to_the_next() -> None:
    model = chat_model(FakeDecoder(slots=1))
    first, second, third = (ask(model, text) for text in ("aa", "bb", "cc"))
    step(model)
    model.lane.drop(first)
    model.lane.drop(third)
    assert step(model) == [(second, Progress("b"))]
    model.lane.drop(second)
    model.lane.drop(second)
    assert not model.lane.ready(0.0)


def test_measuring_the_cost_leaves_every_slot_empty() -> None:
    decoder = FakeDecoder(script=echo)
    chat_model(decoder)
    assert not decoder.held


def test_an_answer_reads_only_what_no_slot_holds_of_its_prompt() -> None:
    decoder = FakeDecoder()
    model = chat_model(decoder, prefix_ttl_s=60.0)
    first = ask(model, "a" * 60 + "b")
    step(model)
    model.lane.drop(first)
    decoder.runs.clear()
    second = ask(model, "a" * 60 + "c")
    assert step(model) == [(second, Progress("a"))]
    num_prompt = second.num_prompt_tokens
    assert second.num_reused is not None
    assert decoder.runs == [[(0, num_prompt - second.num_reused)]]
    assert second.num_reused == first.tokens.index(ord("b"))


def test_choices_of_one_prompt_read_it_once() -> None:
    decoder = FakeDecoder()
    model = chat_model(decoder, prefix_ttl_s=60.0)
    jobs = [ask(model, "a" * 60) for _ in range(3)]
    num_prompt = jobs[0].num_prompt_tokens
    assert [each for each, _ in step(model)] == jobs[:1]
    assert [each for each, _ in step(model)] == jobs
    assert decoder.runs == [[(0, num_prompt)], [(0, 1), (1, 2), (2, 2)]]
    assert [each.num_reused for each in jobs] == [0, num_prompt - 2, num_prompt - 2]


def test_what_failed_is_not_kept_for_others() -> None:
    decoder = FakeDecoder(nan_when=lambda read: True)
    model = chat_model(decoder, prefix_ttl_s=60.0)
    ask(model, "a" * 60)
    step(model)
    assert not decoder.held
    assert not model.lane.ready(0.0)


def test_idle_time_gives_back_what_was_kept_for_long_enough() -> None:
    decoder = FakeDecoder()
    model = chat_model(decoder, prefix_ttl_s=60.0)
    first = ask(model, "a" * 40)
    while step(model) != [(first, Progress("", "stop"))]:
        pass
    until = model.lane.wake_at()
    assert until is not None
    model.lane.tidy(until - 1.0)
    assert decoder.held
    model.lane.tidy(until)
    assert not decoder.held
    assert model.lane.wake_at() is None


def test_a_smaller_allotment_takes_what_is_only_kept() -> None:
    decoder = FakeDecoder(context=64)
    model = chat_model(decoder, prefix_ttl_s=60.0)
    jobs = [ask(model, letter * 20) for letter in "ab"]
    step(model)
    for job in jobs:
        model.lane.drop(job)
    assert decoder.held.keys() == {0, 1}
    model.allot(0)  # one context is left to it
    assert decoder.held.keys() == {1}


def test_a_request_waits_while_the_memory_could_not_hold_it_beside_the_others() -> None:
    decoder = FakeDecoder(context=64)
    model = chat_model(decoder, max_held=100)
    first, second = ask(model, "ab"), ask(model, "xy")
    assert step(model) == [(first, Progress("a"))]
    assert second.slot is None
    model.lane.drop(first)
    assert step(model) == [(second, Progress("x"))]


def test_copying_what_need_not_be_read_is_time_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chat_model(FakeDecoder(slots=2), prefix_ttl_s=60.0)
    ask(model, "a" * 40)
    step(model)
    before_s = model.lane.run_s
    copied = []

    def copy(source: int, target: int, tokens: int) -> None:
        copied.append(tokens)
        clock.now += 3.0

    class Clock:
        now = 100.0

        def perf_counter(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(model.lane._decoder, "copy", copy)
    monkeypatch.setattr("engine.llm.runner.time", clock)
    ask(model, "a" * 40)
    assert model.lane.plan(0.0, 1.0) is not None
    assert copied[0] >= 32
    assert model.lane.run_s == before_s + 3.0
