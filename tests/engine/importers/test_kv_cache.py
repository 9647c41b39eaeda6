"""Keys and values in eight bits: nearly the same answers out of a quarter of the memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.importers.decode_weights import KvCache
from engine.importers.gguf import import_gguf
from engine.llm.decoder import Decoder, RowWork, load_decoder
from engine.llm.kv import KvShape
from engine.model_folder import ModelError, ModelFolder
from tests.engine.reference import Reference, mean_kl
from tests.engine.tiny_gguf import write_tiny_gguf

# Of the kinds of tokens that the text has by which the steps are found: bytes of English, in no order.
PROMPT = [70 + 7 * at % 40 for at in range(40)]
NEAR = 5e-3


def imported(directory: Path, family: str = "llama", kv_cache: KvCache = "int8") -> tuple[Path, ModelFolder]:
    file = write_tiny_gguf(directory / f"{family}.gguf", family=family)
    folder = import_gguf(file, directory / f"{family}-{kv_cache}", weights="int8", kv_cache=kv_cache)
    return file, folder


def read(decoder: Decoder, tokens: list[int], *, slot: int = 0, past: int = 0) -> np.ndarray:
    (rows,) = decoder.run([RowWork(slot, tokens, past, len(tokens))])
    return np.stack([row.whole() for row in rows])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_each_family_answers_nearly_the_same(tmp_path: Path, family: str) -> None:
    file, folder = imported(tmp_path, family)
    decoder = load_decoder(folder, slots=1, threads=1)
    expected = Reference(gguf.GGUFReader(file)).logits(PROMPT)
    assert mean_kl(expected, read(decoder, PROMPT)) < NEAR
    decoder.release(0)
    singly = np.concatenate([read(decoder, [token], past=past) for past, token in enumerate(PROMPT)])
    assert mean_kl(expected, singly) < NEAR


def test_a_token_takes_a_quarter_of_the_memory(tmp_path: Path) -> None:
    _, folder = imported(tmp_path)
    facts = folder.chat
    assert facts.kv_cache == "int8"
    shape = KvShape.of(facts, slots=2, context=256)
    wide = KvShape.of(facts.model_copy(update={"kv_cache": "float32"}), slots=2, context=256)
    assert replace(shape, number_bytes=4) == wide
    assert 4 * shape.filled_bytes(100) == wide.filled_bytes(100)
    assert 4 * shape.committed_bytes(256) == wide.committed_bytes(256)
    decoder = load_decoder(folder, slots=2, threads=1)
    read(decoder, PROMPT)
    assert decoder.kv_bytes_committed == shape.committed_bytes(len(PROMPT))


def test_what_another_slot_holds_can_be_copied(tmp_path: Path) -> None:
    _, folder = imported(tmp_path)
    decoder = load_decoder(folder, slots=3, threads=1)
    read(decoder, PROMPT[:30])
    expected = read(decoder, PROMPT[30:], past=30)
    decoder.copy(0, 2, 30)
    np.testing.assert_array_equal(read(decoder, PROMPT[30:], slot=2, past=30), expected)


def test_exact_weights_want_float32(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(ModelError, match="want weights in eight bits"):
        import_gguf(file, tmp_path / "tiny", kv_cache="int8")
    assert not (tmp_path / "tiny").exists()
