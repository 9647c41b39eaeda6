"""Blocks keep their exact values in the layout of MatMulNBits."""

import gguf
import numpy as np
import pytest

from engine.importers import gguf_blocks as blocks

FORMATS = [("Q4_0", blocks.Q4_0), ("Q4_1", blocks.Q4_1), ("Q8_0", blocks.Q8_0)]


def unpacked(integers: np.ndarray, bits: int) -> np.ndarray:
    """What MatMulNBits reads: the low nibble of a byte first, less the default zero point."""
    values = integers if bits == 8 else np.stack([integers & 15, integers >> 4], axis=-1)
    return values.reshape(*integers.shape[:2], 32).astype(np.float32) - np.float32(2 ** (bits - 1))


@pytest.mark.parametrize(("kind", "form"), FORMATS)
def test_the_parts_of_a_block_give_back_its_weights(kind: str, form: blocks.BlockFormat) -> None:
    random = np.random.default_rng(7)
    rows = gguf.quants.quantize(random.normal(0.3, 1, (5, 96)).astype(np.float32), gguf.GGMLQuantizationType[kind])
    expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind])
    weights = unpacked(blocks.integers(rows, form), form.bits) * blocks.scales(rows, form)[..., None]
    if form.has_minimum:
        weights += blocks.centres(rows, form)[..., None]
        np.testing.assert_allclose(weights.reshape(5, 96), expected, atol=2e-6)
    else:
        np.testing.assert_array_equal(weights.reshape(5, 96), expected)


def test_the_split_of_q4_1_multiplies_exactly() -> None:
    """x·W equals the centred product plus the block sums times the centres, in exact arithmetic."""
    random = np.random.default_rng(8)
    rows = gguf.quants.quantize(random.normal(0, 1, (7, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q4_1)
    x = random.normal(0, 1, (3, 64))
    expected = x @ gguf.quants.dequantize(rows, gguf.GGMLQuantizationType.Q4_1).astype(np.float64).T
    centred = unpacked(blocks.integers(rows, blocks.Q4_1), 4) * blocks.scales(rows, blocks.Q4_1)[..., None].astype(
        float
    )
    sums = x.reshape(3, 2, 32).sum(axis=-1)
    split = x @ centred.reshape(7, 64).T + sums @ blocks.centres(rows, blocks.Q4_1).astype(np.float64).T
    np.testing.assert_allclose(split, expected, atol=1e-5)
