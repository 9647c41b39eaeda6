"""How near a model's logits are to those of the same weights in float32.

Pure. Both are given the same text token by token, whatever they would have said themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Fidelity(NamedTuple):
    """kl: mean over the tokens of KL(reference || model), in nats. top1: the share of tokens with the same best."""

    kl: float
    top1: float


def compare(reference: NDArray[np.float32], logits: NDArray[np.float32]) -> Fidelity:
    """Both float32 [tokens, V]; row by row, so that a whole text's float64 is never there at once."""
    kls = []
    for true, seen in zip(reference, logits, strict=True):
        true_log, seen_log = _log_softmax(true), _log_softmax(seen)
        kls.append(float(np.exp(true_log) @ (true_log - seen_log)))
    return Fidelity(float(np.mean(kls)), float(np.mean(reference.argmax(-1) == logits.argmax(-1))))


def _log_softmax(row: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = row.astype(np.float64)
    wide -= wide.max()
    normed: NDArray[np.float64] = wide - np.log(np.exp(wide).sum())
    return normed
