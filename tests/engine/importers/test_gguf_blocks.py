"""Blocks keep their exact values in the layout of MatMulNBits."""

import gguf
import numpy as np
import pytest

from engine.importers import gguf_blocks as blocks
from engine.importers import gguf_super_blocks as super_blocks
from tests.engine.tiny_gguf import random_blocks

FORMATS = [
    ("Q4_0", blocks.Q4_0),
    ("Q4_1", blocks.Q4_1),
    ("Q5_0", blocks.Q5_0),
    ("Q5_1", blocks.Q5_1),
    ("Q8_0", blocks.Q8_0),
    ("Q4_K", super_blocks.Q4_K),
    ("Q6_K", super_blocks.Q6_K),
]


def unpacked(integers: np.ndarray, form: blocks.BlockFormat) -> np.ndarray:
    """What MatMulNBits reads: the low nibble of a byte first, less the default zero point."""
    values = integers if form.bits == 8 else np.stack([integers & 15, integers >> 4], axis=-1)
    return values.reshape(*integers.shape[:2], form.block).astype(np.float32) - np.float32(2 ** (form.bits - 1))


def random_rows(kind: str) -> np.ndarray:
    """Five raw rows of 768 weights."""
    random = np.random.default_rng(7)
    if kind in ("Q4_K", "Q6_K"):
        return random_blocks(kind, (5, 768), random)
    return gguf.quants.quantize(random.normal(0.3, 1, (5, 768)).astype(np.float32), gguf.GGMLQuantizationType[kind])


@pytest.mark.parametrize(("kind", "form"), FORMATS)
def test_the_parts_of_a_block_give_back_its_weights(kind: str, form: blocks.BlockFormat) -> None:
    rows = random_rows(kind)
    expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind])
    weights = unpacked(form.integers(rows), form) * form.scales(rows)[..., None]
    if form.centres is None:
        np.testing.assert_array_equal(weights.reshape(5, 768), expected)
    else:
        weights += form.centres(rows)[..., None]
        np.testing.assert_allclose(weights.reshape(5, 768), expected, atol=2e-6)


def test_the_split_of_q4_1_multiplies_exactly() -> None:
    """x·W equals the centred product plus the block sums times the centres, in exact arithmetic."""
    random = np.random.default_rng(8)
    rows = gguf.quants.quantize(random.normal(0, 1, (7, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q4_1)
    x = random.normal(0, 1, (3, 64))
    expected = x @ gguf.quants.dequantize(rows, gguf.GGMLQuantizationType.Q4_1).astype(np.float64).T
    form = blocks.Q4_1
    assert form.centres is not None
    centred = unpacked(form.integers(rows), form) * form.scales(rows)[..., None].astype(float)
    sums = x.reshape(3, 2, 32).sum(axis=-1)
    split = x @ centred.reshape(7, 64).T + sums @ form.centres(rows).astype(np.float64).T
    np.testing.assert_allclose(split, expected, atol=1e-5)
