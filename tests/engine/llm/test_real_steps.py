"""Drafts and preemption with real kernels: nothing of them shows in what is said but time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from engine.llm import runner
from engine.llm.chat import ChatModel
from engine.llm.cost import StepCost
from engine.llm.decoder import Decoder, RowWork, load_decoder
from engine.llm.recipe import Recipe
from engine.llm.sampling import Sampling
from engine.llm.sequence import Sequence
from engine.llm.speculate import make_drafts
from engine.model_folder import ModelFolder
from engine.settings import ModelSettings

CHEAP = StepCost(8, one_row_s=1.0, all_rows_s=1.0, token_s=1e-6)  # to draft as much as there is to draft
SAID = (40, 41, 42)  # the only tokens that the answers have
QUOTED = [1, *SAID, 40, 42, *SAID, 41, 41, 40, 40, *SAID]
NUM_ANSWERS, NUM_TOKENS = 500, 6


def answer_all(model: ChatModel, *jobs: Sequence) -> dict[int, list[Any]]:
    """All events of these jobs, by their number."""
    events: dict[int, list[Any]] = {number: [] for number in range(len(jobs))}
    numbers = {job: number for number, job in enumerate(jobs)}
    for job in jobs:
        model.lane.add(job)
    while model.lane.ready(0.0):
        if (planned := model.lane.plan(0.0, 1.0)) is not None:
            for job, event in planned.run():
                events[numbers[job]].append(event)
    return events


def counted(folder: ModelFolder, seed: int) -> tuple[Counter[tuple[int, ...]], ChatModel]:
    """How often each answer is given, by three of its tokens. It comes behind a text in which most pairs of them have
    been followed by something."""
    model = ChatModel.load(folder, ModelSettings(name="m", path="", slots=8), threads=1, kv_bytes=1 << 28)
    sampling = Sampling(logit_bias=dict.fromkeys(SAID, 100.0))
    jobs = []
    for number in range(seed, seed + NUM_ANSWERS):
        recipe = Recipe(sampling=sampling, seed=number, max_tokens=NUM_TOKENS, ignore_eos=True)
        jobs.append(model.sequence(QUOTED, recipe, 0, lambda event: None))
    answer_all(model, *jobs)
    model.close()
    begin = len(QUOTED) + 1  # the first token comes without a draft
    return Counter(tuple(job.tokens[begin : begin + 3]) for job in jobs), model


def test_answers_are_as_often_given_with_drafts_as_without(
    tiny_chat: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two samples of other seeds, compared by chi-square."""
    monkeypatch.setattr(runner, "make_drafts", lambda shares, cost, allowance_s: {})
    plain, without = counted(tiny_chat, 0)
    monkeypatch.setattr(runner, "make_drafts", lambda shares, cost, allowance_s: make_drafts(shares, CHEAP, 1.0))
    drafted, with_drafts = counted(tiny_chat, NUM_ANSWERS)
    assert without.lane.num_drafted == 0
    assert min(with_drafts.lane.num_accepted, with_drafts.lane.num_drafted - with_drafts.lane.num_accepted) > 100
    assert {token for answer in plain for token in answer} == {*SAID}
    rare = {answer for answer in plain | drafted if plain[answer] + drafted[answer] < 20}
    cells = [(plain[answer], drafted[answer]) for answer in (plain | drafted).keys() - rare]
    cells.append((sum(plain[answer] for answer in rare), sum(drafted[answer] for answer in rare)))
    degrees = len(cells) - 1
    chi_square = sum((a - b) ** 2 / (a + b) for a, b in cells if a + b)
    assert degrees > 15
    assert chi_square < degrees + 3.7 * (2 * degrees) ** 0.5, (chi_square, degrees)  # less than one in a thousand


@pytest.fixture
def cold(tiny_chat: ModelFolder) -> Iterator[Decoder]:
    decoder = load_decoder(tiny_chat, slots=1, threads=1)
    yield decoder
    decoder.close()


def test_texts_that_outgrow_the_memory_go_back_to_wait_and_lose_nothing(tiny_chat: ModelFolder, cold: Decoder) -> None:
    """Every token is the likeliest one after all before it, as a decoder says that reads them alone and at once."""
    settings = ModelSettings(name="m", path="", slots=4, context=160, prefix_ttl_s=0.0)
    budget = cold.kv_bytes_for(160) * 2
    model = ChatModel.load(tiny_chat, settings, threads=1, kv_bytes=budget)
    recipe = Recipe(sampling=Sampling(temperature=0.0), max_tokens=100, ignore_eos=True)
    ask = partial(model.sequence, recipe=recipe, number=0, deliver=lambda event: None)
    jobs = [ask([1, *range(40 + number, 60 + number)]) for number in range(6)]
    events = answer_all(model, *jobs)
    assert model.lane.scheduler.num_preempted > 0
    for number, job in enumerate(jobs):
        answer = job.tokens[job.num_prompt_tokens :]
        assert len(answer) == 100
        assert events[number][-1].finish_reason == "length"
        said = "".join(event.text for event in events[number])
        whole = b"".join(map(model._token_bytes, answer)).decode(errors="replace")
        assert said in (whole, whole[:-1])  # a last character that is not complete is not shown
        (every,) = cold.run([RowWork(0, job.tokens[:-1], 0, len(answer))])
        for token, logits in zip(answer, every, strict=True):
            assert logits.vocabulary[token] > logits.vocabulary.max() - 0.05  # the two best may be nearly alike
    assert model._decoder.kv_bytes_committed == 0
    model.close()
