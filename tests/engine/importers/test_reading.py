"""What a reading brings to each projection is what an independent forward pass computes, family by family."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.importers.gguf_family import read_hyperparameters
from engine.importers.reading import Reading, passage_tokens
from tests.engine.reference import Reference
from tests.engine.tiny_gguf import LAYERS, write_tiny_gguf

TOKENS = [3 + 7 * at % 200 for at in range(24)]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("passage", [24, 8])
def test_a_whole_model_read_this_way_ends_with_the_references_logits(tmp_path: Path, family: str, passage: int) -> None:
    reader = gguf.GGUFReader(write_tiny_gguf(tmp_path / "tiny.gguf", "F32", family=family, tied=False))
    model = read_hyperparameters({key: field.contents() for key, field in reader.fields.items()})
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}

    def project(values: np.ndarray, *names: str) -> np.ndarray:
        zero = np.zeros(1, np.float32)
        parts = [values @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", zero) for name in names]
        return np.concatenate(parts, axis=-1)

    reading = Reading(model, tensors["token_embd.weight"][TOKENS], *model.rotary.tables(passage))
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        gains = None
        if family == "qwen3":
            counts = {"attn_q_norm": model.heads, "attn_k_norm": model.kv_heads}
            gains = np.concatenate([np.tile(tensors[f"{block}.{name}.weight"], (n, 1)) for name, n in counts.items()])
        normed = reading.normed() * tensors[f"{block}.attn_norm.weight"]
        packed = project(normed, *(f"{block}.attn_{part}" for part in "qkv"))
        reading.add(project(reading.attend(packed, gains).mixed, f"{block}.attn_output"))
        normed = reading.normed() * tensors[f"{block}.ffn_norm.weight"]
        both = project(normed, f"{block}.ffn_gate", f"{block}.ffn_up")
        reading.add(project(reading.activate(both), f"{block}.ffn_down"))
    logits = project(reading.normed() * tensors["output_norm.weight"], "output")
    reference = Reference(reader)
    for start in range(0, len(TOKENS), passage):
        expected = reference.logits(TOKENS[start : start + passage])
        np.testing.assert_allclose(logits[start : start + passage], expected, rtol=2e-4, atol=2e-4)


def test_passages_are_no_longer_than_the_text_the_context_or_256_tokens() -> None:
    assert [passage_tokens(*each) for each in ((5000, 8192), (100, 8192), (5000, 64))] == [256, 100, 64]
