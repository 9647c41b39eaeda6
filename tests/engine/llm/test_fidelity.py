"""The imported default model against a float32 forward pass of its file, and against itself in company.

Bounds are those of the design: top-1 agreement 95 %, mean KL 0.006 nats. Rounding Q4_1 to integer zero points gives a
KL of 0.28.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.llm.decoder import Decoder, RowWork, load_decoder
from engine.llm.vocabulary import load_vocabulary
from engine.model_folder import ModelFolder
from tests.engine.reference import Floats, Reference, mean_kl

PROSE = Path(__file__).parent.parent / "prose.txt"
MAX_KL, MIN_TOP_1 = 0.006, 0.95

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def decoder(smollm2: ModelFolder) -> Iterator[Decoder]:
    decoder = load_decoder(smollm2, slots=8, context=1024, threads=2)
    yield decoder
    decoder.close()


@pytest.fixture(scope="module")
def text(smollm2: ModelFolder) -> list[int]:
    return load_vocabulary(smollm2).encode_text(PROSE.read_text(), max_tokens=1024)


def one_by_one(decoder: Decoder, tokens: Sequence[int]) -> Floats:
    """The logits after each token of a sequence that has the model to itself."""
    logits = []
    for past, token in enumerate(tokens):
        ((row,),) = decoder.run([RowWork(0, [token], past, 1)])
        logits.append(row.whole())
    decoder.release(0)
    return np.stack(logits)


def test_decoding_agrees_with_the_float32_model(
    decoder: Decoder, text: list[int], smollm2_gguf: gguf.GGUFReader
) -> None:
    assert len(text) >= 500
    expected = Reference(smollm2_gguf).logits(text)
    actual = one_by_one(decoder, text)
    assert mean_kl(expected, actual) <= MAX_KL
    assert np.mean(expected.argmax(axis=-1) == actual.argmax(axis=-1)) >= MIN_TOP_1


def test_eight_interleaved_sequences_answer_as_each_does_alone(decoder: Decoder, text: list[int]) -> None:
    """Each starts five steps after the one before with a chunk of its own length, then decodes token by token."""
    sequences = [text[64 * number : 64 * number + 40] for number in range(8)]
    alone = [one_by_one(decoder, tokens) for tokens in sequences]
    held = [0] * 8
    expected, actual = [], []
    for step in range(80):
        rows = []
        for slot, tokens in enumerate(sequences):
            if step >= 5 * slot and held[slot] < len(tokens):
                count = 1 if held[slot] else 3 + 2 * slot
                rows.append(RowWork(slot, tokens[held[slot] : held[slot] + count], held[slot], 1))
        for row, (result,) in zip(rows, decoder.run(rows), strict=True):
            held[row.slot] += len(row.tokens)
            actual.append(result.whole())
            expected.append(alone[row.slot][held[row.slot] - 1])
    assert held == [40] * 8
    assert mean_kl(np.stack(expected), np.stack(actual)) <= MAX_KL
