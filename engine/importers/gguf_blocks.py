"""GGUF's weight blocks in the layout of ONNX Runtime's MatMulNBits. Pure numpy; knows no graph and no file.

A form says how raw rows uint8 [N, bytes] come apart, K columns in blocks of 32 or 16. All conversions are exact:
integers stay integers, and a scale, a float16 or the product of a float16 and a small integer, fits a float32.

    Q4_0   w = d (q - 8)              the form of MatMulNBits, whose zero point defaults to 8
    Q4_1   w = d q + m                split into d (q - 8) and (m + 8 d), the second constant within a block
    Q5_0   w = d (q - 16)             as eight bits, d ((q + 112) - 128)
    Q5_1   w = d q + m                the same and (m + 16 d)
    Q8_0   w = d q, q signed          d ((q + 128) - 128), whose zero point defaults to 128

The forms of 256 weights in gguf_super_blocks.py end in the same three parts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Raw = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How raw rows become the parts of a MatMulNBits weight."""

    bits: int
    block: int  # weights that share a scale
    integers: Callable[[Raw], Raw]  # -> uint8 [N, K/block, block·bits/8]
    scales: Callable[[Raw], Floats]  # -> [N, K/block]
    centres: Callable[[Raw], Floats] | None = None  # -> [N, K/block], to be added to every weight of a block

    def numbers(self, rows: Raw) -> Floats:
        """The weights themselves, float32 [N, K]."""
        integers = self.integers(rows)
        if self.bits == 4:
            integers = np.stack([integers & 0x0F, integers >> 4], axis=-1).reshape(*integers.shape[:-1], -1)
        weights: Floats = (integers - np.float32(1 << self.bits - 1)) * self.scales(rows)[..., None]
        if self.centres is not None:
            weights += self.centres(rows)[..., None]
        return weights.reshape(len(rows), -1)


def blocks_of(rows: Raw, block_bytes: int) -> Raw:
    """Raw rows cut into blocks, [N, blocks, block_bytes]."""
    return rows.reshape(rows.shape[0], -1, block_bytes)


def half_at(blocks: Raw, at: int) -> Floats:
    """The float16 at byte `at` of every block."""
    halves: NDArray[Any] = np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)
    return halves[..., 0].astype(np.float32)


def pack(integers: Raw) -> Raw:
    """Four-bit integers [..., 2 n] as MatMulNBits packs them: neighbours in one byte, the first one low."""
    packed: Raw = integers[..., 0::2] | integers[..., 1::2] << np.uint8(4)
    return packed


def _nibbles(blocks: Raw) -> Raw:
    """The integers of four-bit blocks in order: weights 0-15 lie in the low and 16-31 in the high nibbles."""
    return np.concatenate([blocks & 0x0F, blocks >> 4], axis=-1)


Q4_0 = BlockFormat(
    bits=4,
    block=32,
    integers=lambda rows: pack(_nibbles(blocks_of(rows, 18)[..., 2:])),
    scales=lambda rows: half_at(blocks_of(rows, 18), 0),
)
Q4_1 = BlockFormat(
    bits=4,
    block=32,
    integers=lambda rows: pack(_nibbles(blocks_of(rows, 20)[..., 4:])),
    scales=lambda rows: half_at(blocks_of(rows, 20), 0),
    centres=lambda rows: half_at(blocks_of(rows, 20), 2) + np.float32(8) * half_at(blocks_of(rows, 20), 0),
)


def _five_bits(blocks: Raw) -> Raw:
    """The integers of five-bit blocks less 16, about the zero point of eight bits: four bytes hold their upper bits."""
    upper = np.unpackbits(blocks[..., :4], axis=-1, bitorder="little")
    return (_nibbles(blocks[..., 4:]) | upper << np.uint8(4)) + np.uint8(112)


Q5_0 = BlockFormat(
    bits=8,
    block=32,
    integers=lambda rows: _five_bits(blocks_of(rows, 22)[..., 2:]),
    scales=lambda rows: half_at(blocks_of(rows, 22), 0),
)
Q5_1 = BlockFormat(
    bits=8,
    block=32,
    integers=lambda rows: _five_bits(blocks_of(rows, 24)[..., 4:]),
    scales=lambda rows: half_at(blocks_of(rows, 24), 0),
    centres=lambda rows: half_at(blocks_of(rows, 24), 2) + np.float32(16) * half_at(blocks_of(rows, 24), 0),
)
Q8_0 = BlockFormat(
    bits=8,
    block=32,
    integers=lambda rows: blocks_of(rows, 34)[..., 2:] ^ np.uint8(0x80),
    scales=lambda rows: half_at(blocks_of(rows, 34), 0),
)
