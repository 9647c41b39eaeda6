"""Several tokens in a step: an answer with drafts is the answer without them, sooner."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import RequestError
from engine.llm import calibrate, runner
from engine.llm.chat import ChatModel
from engine.llm.decoder import RowWork
from engine.llm.recipe import Recipe
from engine.llm.sampling import Choice, Sampling
from engine.llm.sequence import Sequence
from tests.fakes_engine import START, FakeDecoder, chat_model, play

QUOTED = "one two three four five six seven eight nine ten"
LOOP = [*b"ab" * 60]


@pytest.fixture(autouse=True)
def _a_clock_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run takes 5 ms, whatever it reads: else whether drafts pay depends on who else uses the box."""
    instants = itertools.count(step=0.005)
    clock = SimpleNamespace(perf_counter=lambda: next(instants), monotonic=time.monotonic)
    monkeypatch.setattr(runner, "time", clock)
    monkeypatch.setattr(calibrate, "time", clock)


def ask(model: ChatModel, text: str, **recipe: Any) -> Sequence:
    tokens = model.prompts._template.encode([{"role": "user", "content": text}])
    recipe.setdefault("sampling", Sampling(temperature=0))
    job = model.sequence(tokens, Recipe(**recipe), 0, lambda event: None)
    model.lane.add(job)
    return job


def step(model: ChatModel) -> list[tuple[Any, Any]]:
    planned = model.lane.plan(0.0, 1.0)
    assert planned is not None
    return list(planned.run())


def answers(model: ChatModel, *jobs: Sequence) -> list[list[Any]]:
    """All events of these jobs, until nothing is to be done any more."""
    events: list[list[Any]] = [[] for _ in jobs]
    while model.lane.ready(0.0):
        for job, event in step(model):
            events[jobs.index(job)].append(event)
    return events


def text_of(events: list[Any]) -> str:
    return "".join(event.text for event in events)


def logprobs_of(events: list[Any]) -> list[Choice]:
    return [each for event in events for each in event.logprobs]


def end_of(row: RowWork) -> int:
    return row.past + len(row.tokens)


@pytest.mark.parametrize("speculation", [False, True])
def test_a_quoting_answer_takes_fewer_steps_and_is_the_same(speculation: bool) -> None:
    decoder = FakeDecoder()
    model = chat_model(decoder, speculation=speculation)
    (events,) = answers(model, ask(model, QUOTED))
    assert text_of(events) == QUOTED
    assert events[-1].finish_reason == "stop"
    assert len(decoder.runs) <= 12 if speculation else len(decoder.runs) == len(QUOTED) + 1
    assert model.lane.num_output_tokens == len(QUOTED) + 1
    assert not decoder.held
    assert (model.lane.num_accepted > 30) is speculation
    assert model.lane.num_accepted <= model.lane.num_drafted


def test_rows_with_drafts_and_rows_without_keep_to_themselves() -> None:
    decoder = FakeDecoder()
    model = chat_model(decoder, speculation=True)
    texts = [QUOTED, "xyz", "la " * 30, "q"]
    assert list(map(text_of, answers(model, *(ask(model, text) for text in texts)))) == texts
    assert any(len({num_tokens for _, num_tokens in run}) > 1 for run in decoder.runs[1:])


def test_a_wrong_draft_leaves_no_trace() -> None:
    said = [*b"one two three, one two THREE, one two four, and one two three more than once or twice"]
    decoder = FakeDecoder(play(said))
    model = chat_model(decoder, speculation=True)
    (events,) = answers(model, ask(model, QUOTED))
    assert text_of(events) == bytes(said).decode()
    assert 0 < model.lane.num_accepted < model.lane.num_drafted


def test_max_tokens_inside_a_draft() -> None:
    for max_tokens in range(1, 40):
        model = chat_model(FakeDecoder(play(LOOP)), speculation=True)
        (events,) = answers(model, ask(model, QUOTED, max_tokens=max_tokens))
        assert text_of(events) == ("ab" * 60)[:max_tokens]
        assert events[-1].finish_reason == "length"
        assert model.lane.num_output_tokens == max_tokens


def test_a_stop_string_inside_an_accepted_draft_ends_the_answer_there() -> None:
    model = chat_model(FakeDecoder(), speculation=True)
    (events,) = answers(model, ask(model, QUOTED, stops=("seven ei",)))
    assert text_of(events) == "one two three four five six "
    assert events[-1].finish_reason == "stop"
    assert model.lane.num_output_tokens == len("one two three four five six seven ei")


def test_a_cancel_between_two_steps_of_drafts_frees_the_slot() -> None:
    decoder = FakeDecoder(play(LOOP), slots=1)
    model = chat_model(decoder, speculation=True)
    jobs = ask(model, QUOTED), ask(model, "second")
    while decoder.runs[-1:] != [[(0, 17)]]:
        step(model)
    answered, waiting = sorted(jobs, key=lambda job: job.slot is None)  # who comes first is what reading costs
    assert answered.slot == 0
    model.lane.drop(answered)
    assert not decoder.held
    assert [job for job, _ in step(model)] == [waiting]


def test_a_row_that_goes_bad_inside_a_draft_ends_after_what_was_right() -> None:
    bad = [*b"\none two three fo"]
    decoder = FakeDecoder(nan_when=lambda read: read[-len(bad) :] == bad and read.count(START) > 1)
    model = chat_model(decoder, speculation=True)
    (events,) = answers(model, ask(model, "one two three four, one two three four"))
    assert isinstance(events[-1], RequestError)
    assert text_of(events[:-1]) == "one two three fo"
    assert not decoder.held


def test_a_step_without_room_for_drafts_in_the_memory_has_none() -> None:
    held: list[int] = []
    decoder = FakeDecoder(play(LOOP), context=64, before_run=lambda rows: held.extend(map(end_of, rows)))
    model = chat_model(decoder, speculation=True, max_held=64)
    (events,) = answers(model, ask(model, "ab"))
    assert events[-1].finish_reason == "length"
    assert model.lane.num_accepted > 0
    assert max(held) <= 64


def test_penalties_and_log_probabilities_see_every_token_once() -> None:
    def with_drafts(speculation: bool) -> list[Any]:
        model = chat_model(FakeDecoder(flat=True), speculation=speculation)
        sampling = Sampling(temperature=0, frequency_penalty=0.01, logprobs=2)
        (events,) = answers(model, ask(model, QUOTED, sampling=sampling, max_tokens=60))
        return events

    plain, drafted = with_drafts(False), with_drafts(True)
    assert text_of(plain) == text_of(drafted)
    assert logprobs_of(plain) == logprobs_of(drafted) != []


def test_a_deterministic_model_reads_no_token_alone_and_drafts_nothing() -> None:
    decoder = FakeDecoder()
    model = chat_model(decoder, speculation=True, deterministic=True)
    (events,) = answers(model, ask(model, QUOTED))
    assert text_of(events) == QUOTED
    assert decoder.runs[1:] == [[(0, 2)]] * len(QUOTED)
    assert model.lane.num_drafted == 0


def test_a_seed_gives_the_same_text_with_drafts_and_without_so_the_distribution_is_the_same() -> None:
    """The fake's logits are the same however many tokens a run reads, so nothing but the choosing can differ."""
    said = [*b"abababababababababab" * 4]
    accepted = rejected = 0
    for seed in range(60):
        texts = []
        for speculation in (False, True):
            model = chat_model(FakeDecoder(play(said), flat=True), speculation=speculation)
            sampling = Sampling(temperature=0.02 if seed % 2 else 0.03)
            (events,) = answers(model, ask(model, "ababab", sampling=sampling, seed=seed, max_tokens=60))
            texts.append(text_of(events))
        assert texts[0] == texts[1]
        accepted += model.lane.num_accepted
        rejected += model.lane.num_drafted - model.lane.num_accepted
    assert min(accepted, rejected) > 50
