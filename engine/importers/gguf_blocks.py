"""GGUF's weight blocks in the layout of ONNX Runtime's MatMulNBits. Pure numpy; knows no graph and no file.

A block holds 32 weights of one row. Four-bit blocks carry weights 0-15 in the low and 16-31 in the high nibbles;
MatMulNBits packs neighbours into one byte. All conversions are exact: integers stay integers and each float16 scale
becomes the float32 of the same value.

    Q4_0   w = d (q - 8)             the form of MatMulNBits, whose zero point defaults to 8
    Q4_1   w = d q + m               split into d (q - 8) and (m + 8 d), the second constant within a block
    Q8_0   w = d q, q signed         d ((q + 128) - 128), whose zero point defaults to 128
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 32


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """Where a quantised block keeps its parts, in bytes."""

    bits: int
    block_bytes: int
    has_minimum: bool  # a float16 minimum follows the float16 scale


Q4_0 = BlockFormat(bits=4, block_bytes=18, has_minimum=False)
Q4_1 = BlockFormat(bits=4, block_bytes=20, has_minimum=True)
Q8_0 = BlockFormat(bits=8, block_bytes=34, has_minimum=False)


def integers(rows: NDArray[np.uint8], form: BlockFormat) -> NDArray[np.uint8]:
    """The packed integers uint8 [N, K/32, 4·bits] of raw rows uint8 [N, K/32·block_bytes]."""
    blocks = _blocks(rows, form)
    body = blocks[..., 4 if form.has_minimum else 2 :]
    if form.bits == 8:
        return np.bitwise_xor(body, np.uint8(0x80))
    halves = np.concatenate([body & 0x0F, body >> 4], axis=-1)  # the block's 32 integers in order
    packed: NDArray[np.uint8] = halves[..., 0::2] | halves[..., 1::2] << 4
    return packed


def scales(rows: NDArray[np.uint8], form: BlockFormat) -> NDArray[np.float32]:
    """The scale d of every block, float32 [N, K/32]."""
    return _float16_at(rows, form, 0)


def centres(rows: NDArray[np.uint8], form: BlockFormat) -> NDArray[np.float32]:
    """What the split of Q4_1 adds to every weight of a block, m + 8 d, float32 [N, K/32]."""
    return _float16_at(rows, form, 2) + np.float32(8) * _float16_at(rows, form, 0)


def _blocks(rows: NDArray[np.uint8], form: BlockFormat) -> NDArray[np.uint8]:
    return rows.reshape(rows.shape[0], -1, form.block_bytes)


def _float16_at(rows: NDArray[np.uint8], form: BlockFormat, at: int) -> NDArray[np.float32]:
    pair = np.ascontiguousarray(_blocks(rows, form)[..., at : at + 2])
    return pair.view(np.float16)[..., 0].astype(np.float32)
