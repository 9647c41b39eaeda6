"""GGUF's blocks of 256 weights, taken apart into the same exact parts as the small ones. Pure numpy.

    Q4_K   w = d s q - e m     s and m of 6 bits for every 32 weights, split as Q4_1 is: d s (q - 8) and (8 d s - e m)
    Q6_K   w = d s (q - 32)    s of 8 bits for every 16 weights; as eight bits, d s ((q + 96) - 128)

Layouts: block_q4_K and block_q6_K of ggml-common.h, their order of weights dequantize_row_q4_K and _q6_K of
ggml-quants.c.
"""

import numpy as np

from engine.importers.gguf_blocks import BlockFormat, Floats, Raw, blocks_of, half_at, pack

_Q4_K_BYTES, _Q6_K_BYTES = 144, 210


def _q4_k_integers(rows: Raw) -> Raw:
    body = blocks_of(rows, _Q4_K_BYTES)[..., 16:]
    runs = body.reshape(*body.shape[:2], 4, 1, 32)  # a run of bytes holds 32 weights low and the next 32 high
    integers = np.concatenate([runs & 0x0F, runs >> 4], axis=-2)
    return pack(integers.reshape(len(rows), -1, 32))


def _q4_k_parts(rows: Raw) -> tuple[Floats, Floats]:
    """d s and e m of every 32 weights, [N, K/32] each.

    Of the twelve bytes that hold the eight s and m, the first four have s 0-3 and the next four m 0-3 in their lower
    six bits; the last four have the lower halves of s 4-7 and m 4-7, whose upper two bits top the first eight.
    """
    blocks = blocks_of(rows, _Q4_K_BYTES)
    first, second, third = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    s = np.concatenate([first & 0x3F, (third & 0x0F) | (first >> 6 << 4)], axis=-1)
    m = np.concatenate([second & 0x3F, (third >> 4) | (second >> 6 << 4)], axis=-1)
    scales = half_at(blocks, 0)[..., None] * s.astype(np.float32)
    minima = half_at(blocks, 2)[..., None] * m.astype(np.float32)
    return scales.reshape(len(rows), -1), minima.reshape(len(rows), -1)


def _q4_k_centres(rows: Raw) -> Floats:
    scales, minima = _q4_k_parts(rows)
    return np.float32(8) * scales - minima


def _q6_k_integers(rows: Raw) -> Raw:
    blocks = blocks_of(rows, _Q6_K_BYTES)
    shape = (*blocks.shape[:2], 2)  # each half of a block has 128 weights: 64 bytes of lower and 32 of upper bits
    low = blocks[..., :128].reshape(*shape, 64)
    high = blocks[..., 128:192].reshape(*shape, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8)
    lower = np.concatenate([low & 0x0F, low >> 4], axis=-1).reshape(*shape, 4, 32)
    shifted: Raw = (lower | (high & 0x03) << 4) + np.uint8(96)
    return shifted.reshape(len(rows), -1, 16)


def _q6_k_scales(rows: Raw) -> Floats:
    blocks = blocks_of(rows, _Q6_K_BYTES)
    s = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    return (half_at(blocks, 208)[..., None] * s).reshape(len(rows), -1)


Q4_K = BlockFormat(
    bits=4, block=32, integers=_q4_k_integers, scales=lambda rows: _q4_k_parts(rows)[0], centres=_q4_k_centres
)
Q6_K = BlockFormat(bits=8, block=16, integers=_q6_k_integers, scales=_q6_k_scales)
