"""Rounding weights to eight bits so that what one column loses the next ones make good, for inputs like those seen.

The products of a weight and its inputs are to change little, not the weight itself: inputs go together in few
directions, and an error that is spread over columns that rise and fall together is hardly seen (Frantar et al.,
"GPTQ", 2023, in the form that Chee et al., "QuIP", 2023, show to be the same). On the default model it takes the KL of
eight-bit weights and inputs from 0.0067 to 0.0031.

Both papers factorise the inputs' moments, [K, K], which for the 11,008 columns of a model of 7B shape are 970 MB. Few
tokens are read, so the same is found here in their space, as recursive least squares finds it: what the errors so far
do to each token's answer is all that a column has to know. Pure numpy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

DAMPING = 0.05  # of the mean size of inputs, as if so much noise came with each: what was never seen may come too
BLOCK_COLUMNS = 32  # that are rounded one by one; what they lose reaches all later ones in one product
PIECE_ROWS = 1024  # of a weight, which know nothing of each other, that are rounded at a time


class Compensation:
    """How the columns of every weight that reads the same inputs make each other's rounding good."""

    def __init__(self, inputs: Floats) -> None:
        """inputs: [T, K], what the weights were seen to be multiplied by; of none, columns are rounded alone."""
        num_seen, columns = inputs.shape
        # Of more inputs than columns, as many that have the same moments.
        self._inputs = inputs if num_seen <= columns else np.linalg.qr(inputs).R.astype(np.float32)
        self._shares = _shares(self._inputs)

    def round_rows(self, weights: Floats) -> tuple[NDArray[np.int8], Floats]:
        """(integers [N, K] from -127 to 127, scales [N]) whose products stand for those of the weights [N, K]."""
        scales = (np.maximum(np.abs(weights).max(axis=1), np.float32(1e-12)) / np.float32(127)).astype(np.float32)
        integers = np.empty(weights.shape, np.int8)
        for start in range(0, len(weights), PIECE_ROWS):
            piece = slice(start, start + PIECE_ROWS)
            integers[piece] = self._round((weights[piece] / scales[piece, None]).T).T
        return integers, scales

    def _round(self, wanted: Floats) -> NDArray[np.int8]:
        """Integers for numbers in steps, [K, N]."""
        integers = np.empty(wanted.shape, np.int8)
        errors = np.zeros((len(self._inputs), wanted.shape[1]), np.float32)  # of the answers so far
        for start in range(0, len(wanted), BLOCK_COLUMNS):
            block = slice(start, min(start + BLOCK_COLUMNS, len(wanted)))
            inputs, shares = self._inputs[:, block], self._shares[:, block]
            lost = np.ascontiguousarray(wanted[block])
            made_good = lost + shares.T @ errors
            within = inputs.T @ shares
            for at in range(len(lost)):
                integers[start + at] = np.clip(np.rint(made_good[at]), -127, 127)
                lost[at] -= integers[start + at]
                made_good[at + 1 :] += within[at, at + 1 :, None] * lost[at]
            errors += inputs @ lost
        return integers


def _shares(inputs: Floats) -> Floats:
    """By what each column makes errors of the answers to the inputs [T, K] good, [T, K]: columns after it do the rest.

    Backwards, so that ``left`` is how much of the answers no later column can make good: (1 + X Xᵀ / damping)⁻¹ of
    their inputs X.
    """
    num_seen, columns = inputs.shape
    damping = max(DAMPING * float(np.square(inputs, dtype=np.float64).sum()) / columns, 1e-12)
    left = np.eye(num_seen)
    shares = np.empty_like(inputs)
    for end in range(columns, 0, -BLOCK_COLUMNS):
        start = max(0, end - BLOCK_COLUMNS)
        block = inputs[:, start:end].astype(np.float64)
        beyond = left @ block
        found = np.empty_like(block)
        for at in reversed(range(end - start)):
            size = beyond[:, at] @ block[:, : at + 1]
            found[:, at] = beyond[:, at] / (damping + size[at])
            beyond[:, :at] -= np.outer(found[:, at], size[:at])
        left -= found @ beyond.T
        shares[:, start:end] = found
    return shares
