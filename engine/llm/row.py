"""The distribution of one next token: as the decoder gives it, or with the logits of some tokens replaced.

Pure. Of a vocabulary of V tokens the graph hands out the K best and the log of the sum over all; that settles nearly
every choice. The whole vocabulary is there to be looked at until the decoder's next run.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_TRUSTED = 0.05  # when less of a sum is left after a subtraction, float32's rounding is too much of what is left


class Row(Protocol):
    """No token outside ``ids`` has a larger logit than the last of them."""

    @property
    def ids(self) -> NDArray[np.int64]: ...  # [K] by descending logit

    @property
    def logits(self) -> NDArray[np.float32]: ...  # [K]

    @property
    def logsumexp(self) -> float: ...  # over the whole vocabulary

    @property
    def vocabulary(self) -> NDArray[np.float32]: ...  # [V], all logits; to be read only


class ChangedRow:
    """``row`` with the logits of ``ids`` [N], no id twice, replaced by ``logits`` [N]; -inf excludes a token."""

    def __init__(self, row: Row, ids: NDArray[np.int64], logits: NDArray[np.float32]) -> None:
        self.vocabulary = whole = row.vocabulary.copy()
        whole[ids] = logits
        # A token that is not a candidate has at most the last one's logit: whoever has less now is none any more.
        least = row.logits[-1]
        chosen = np.union1d(row.ids, ids[logits >= least])
        chosen = chosen[whole[chosen] >= least]
        total = _sum_exp(logits, row.logsumexp) - _sum_exp(row.vocabulary[ids], row.logsumexp) + 1.0
        if len(chosen) and total > _TRUSTED:
            self.logsumexp = row.logsumexp + math.log(total)
        else:
            best = float(whole.max())
            self.logsumexp = best + math.log(_sum_exp(whole, best))
            chosen = np.sort(np.argpartition(-whole, len(row.ids) - 1)[: len(row.ids)])
        order = np.argsort(-whole[chosen], kind="stable")  # of equal ones the lowest id first, as the graph has them
        self.ids = chosen[order]
        self.logits = whole[self.ids]


def _sum_exp(logits: NDArray[np.float32], base: float) -> float:
    return float(np.exp(logits.astype(np.float64) - base).sum())
