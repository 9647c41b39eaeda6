"""A deterministic decoder: a row has the same bits alone and in any company, whole and in pieces of two and more."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from engine.llm.chat import ChatModel
from engine.llm.decoder import Decoder, RowWork, load_decoder
from engine.llm.recipe import Recipe
from engine.llm.sampling import Sampling
from engine.llm.sequence import Sequence
from engine.model_folder import ModelFolder
from engine.settings import ModelSettings

ANSWER = 8  # tokens after each prompt, read one by one


@pytest.fixture
def tiny(tiny_chat: ModelFolder) -> Iterator[Decoder]:
    decoder = load_decoder(tiny_chat, slots=4, context=128, threads=2, deterministic=True)
    yield decoder
    decoder.close()


@pytest.fixture
def real(smollm2: ModelFolder) -> Iterator[Decoder]:
    decoder = load_decoder(smollm2, slots=3, context=128, threads=2, deterministic=True)
    yield decoder
    decoder.close()


def read_alone(decoder: Decoder, text: list[int]) -> list[np.ndarray]:
    """The logits after each token of it, read in pieces as long as may be."""
    begins = range(0, len(text) - 1, decoder.max_chunk)  # a last token alone is read by the piece before it
    edges = pairwise([*begins, len(text)])
    rows = [RowWork(0, text[begin:end], begin, end - begin) for begin, end in edges]
    return [logits.whole() for row in rows for logits in decoder.run([row])[0]]


def check_company(decoder: Decoder, vocab_size: int, seed: int) -> None:
    """Every slot reads a text of its own, in random pieces, in steps with a random choice of the others."""
    random = np.random.default_rng(seed)
    prompts = [int(random.integers(2, 40)) for _ in range(decoder.slots)]
    texts = [random.integers(3, vocab_size, num + ANSWER).tolist() for num in prompts]
    alone = []
    for text in texts:
        alone.append(read_alone(decoder, text)[-ANSWER - 1 :])
    held = [0] * decoder.slots
    while unread := [slot for slot, text in enumerate(texts) if held[slot] < len(text)]:
        rows = []
        for slot in random.permutation(unread)[: random.integers(1, len(unread) + 1)]:
            left = prompts[slot] - held[slot]
            end = held[slot] + (1 if left <= 0 else int(random.integers(1, min(left, decoder.max_chunk) + 1)))
            begin = max(0, min(held[slot], end - 2))  # a token that would stand alone comes with the one before it
            rows.append(RowWork(int(slot), texts[slot][begin : max(end, 2)], begin, int(end >= prompts[slot])))
        for row, answer in zip(rows, decoder.run(rows), strict=True):
            held[row.slot] = row.past + len(row.tokens)
            for logits in answer:
                expected = alone[row.slot][held[row.slot] - prompts[row.slot]]
                np.testing.assert_array_equal(logits.whole(), expected)


def test_a_row_is_no_longer_than_what_attention_takes_at_a_time(tiny: Decoder) -> None:
    text = np.random.default_rng(1).integers(3, tiny.vocab_size, 3 * tiny.max_chunk).tolist()

    def read(cuts: list[int]) -> list[np.ndarray]:
        rows = [RowWork(0, text[begin:end], begin, end - begin) for begin, end in pairwise(np.cumsum([0, *cuts]))]
        return [logits.whole() for row in rows for logits in tiny.run([row])[0]]

    longest = tiny.max_chunk
    expected = read([longest] * 3)
    for cuts in ([longest - 1, longest, 2, longest - 1], [2, *[longest - 1] * 2, longest], [7, 9] * 3):
        np.testing.assert_array_equal(read(cuts), expected[: sum(cuts)])
    with pytest.raises(ValueError, match=f"a row brings 1 to {longest}"):
        tiny.run([RowWork(0, text[: longest + 1], 0, 1)])


@pytest.mark.parametrize("seed", range(6))
def test_alone_and_in_company_are_bit_equal(tiny: Decoder, seed: int) -> None:
    check_company(tiny, tiny.vocab_size, seed)


@pytest.mark.model
def test_alone_and_in_company_are_bit_equal_with_the_default_model(real: Decoder) -> None:
    check_company(real, 40_000, 0)


def test_an_answer_has_the_same_log_probabilities_alone_and_among_others(tiny_chat: ModelFolder) -> None:
    settings = ModelSettings(name="m", path="", slots=4, deterministic=True, prefix_ttl_s=60.0)
    model = ChatModel.load(tiny_chat, settings, threads=2, kv_bytes=1 << 28)

    def ask(tokens: list[int], seed: int) -> tuple[Sequence, list[float | None]]:
        logprobs: list[float | None] = []
        recipe = Recipe(sampling=Sampling(logprobs=0), seed=seed, max_tokens=12, ignore_eos=True)
        job = model.sequence(tokens, recipe, 0, lambda event: logprobs.extend(each.logprob for each in event.logprobs))
        model.lane.add(job)
        return job, logprobs

    def step() -> None:
        if (planned := model.lane.plan(0.0, 0.001)) is not None:
            for job, event in planned.run():
                job.deliver(event)

    def question(length: int) -> list[int]:
        return np.random.default_rng(length).integers(3, 200, length).tolist()

    job, alone = ask(question(33), seed=7)
    while len(alone) < 12:
        step()
    others = [ask(question(length), length) for length in (50, 2)]
    for _ in range(3):
        step()
    again, among = ask(question(33), seed=7)
    others.append(ask(question(20), 20))
    while len(among) < 12:
        step()
    assert (again.tokens, among) == (job.tokens, alone)
    model.close()
