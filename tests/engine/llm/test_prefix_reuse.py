"""With a real decoder: what is reused reads like what is read, and every byte that slots count is one that it took."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from engine.llm.chat import ChatModel
from engine.llm.decoder import Decoder, RowLogits, RowWork, load_decoder
from engine.llm.recipe import Recipe
from engine.llm.sampling import Sampling
from engine.llm.sequence import Sequence as Text
from engine.model_folder import ModelFolder
from engine.settings import ModelSettings

GREEDY = Recipe(sampling=Sampling(temperature=0.0), max_tokens=6)
BEGINNINGS = [[1, *range(40, 100)], [1, *range(40, 80), *range(120, 140)], [1, *range(20, 60)]]


@pytest.fixture
def cold(tiny_chat: ModelFolder) -> Iterator[Decoder]:
    decoder = load_decoder(tiny_chat, slots=1, threads=1)
    yield decoder
    decoder.close()


def watch(decoder: Decoder) -> dict[int, np.ndarray]:
    """The logits of the last run, by slot."""
    logits: dict[int, np.ndarray] = {}
    run = decoder.run

    def watched(rows: Sequence[RowWork]) -> list[list[RowLogits]]:
        answers = run(rows)
        logits.clear()
        logits.update({row.slot: answer[0].whole() for row, answer in zip(rows, answers, strict=True) if answer})
        return answers

    decoder.run = watched  # type: ignore[method-assign]
    return logits


@pytest.mark.parametrize("seed", range(3))
def test_random_lives_of_texts_that_begin_alike(tiny_chat: ModelFolder, cold: Decoder, seed: int) -> None:
    random = np.random.default_rng(seed)
    settings = ModelSettings(name="m", path="", slots=4, context=160, prefix_ttl_s=60.0)
    budget = cold.kv_bytes_for(160) * 2  # of four slots: some must wait, go back or be given up
    model = ChatModel.load(tiny_chat, settings, threads=1, kv_bytes=budget)
    decoder, slots = model._decoder, model.lane.scheduler.slots
    logits = watch(decoder)
    alive: list[Text] = []
    num_checked = 0
    for turn in range(150):
        if len(alive) < 6 and turn < 120 and random.random() < 0.4:
            own = random.integers(20, 200, random.integers(3, 60)).tolist()
            alive.append(model.sequence([*BEGINNINGS[random.integers(3)], *own], GREEDY, 0, lambda event: None))
            model.lane.add(alive[-1])
        if alive and random.random() < 0.1:
            model.lane.drop(alive.pop(random.integers(len(alive))))
        planned: Any = model.lane.plan(0.0, 0.05)
        if planned is not None:
            begun = [(each, slot) for each in alive if (slot := each.slot) is not None and not each.num_output_tokens]
            planned.run()
            for each, slot in begun:
                if each.num_output_tokens:
                    ((expected,),) = cold.run([RowWork(0, each.tokens[: each.num_prompt_tokens], 0, 1)])
                    np.testing.assert_allclose(logits[slot], expected.whole(), atol=0.02)
                    num_checked += bool(each.num_reused)
        elif turn > 120:
            model.lane.tidy(0.0)
        assert decoder.kv_bytes_committed == slots.memory.committed_bytes <= budget
        alive = [each for each in alive if each.slot is not None or each in model.lane.scheduler.waiting]
    assert not alive
    assert num_checked > 10
    model.lane.tidy(math.inf)
    assert decoder.kv_bytes_committed == 0
    model.close()
