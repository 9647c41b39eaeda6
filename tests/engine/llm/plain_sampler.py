"""The sampler by definition, over the whole vocabulary and slowly; and rows as a graph would give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.llm.sampling import Sampling

K = 8


@dataclass
class FakeRow:
    """The row that a graph would give for these logits; counts how often all of them were looked at."""

    all: NDArray[np.float32]
    num_candidates: int = K
    num_looks: int = 0
    ids: NDArray[np.int64] = field(init=False)
    logits: NDArray[np.float32] = field(init=False)
    logsumexp: float = field(init=False)

    def __post_init__(self) -> None:
        self.ids = np.argsort(-self.all, kind="stable")[: self.num_candidates]
        self.logits = self.all[self.ids]
        self.logsumexp = float(np.float32(log_sum_exp(self.all)))

    @property
    def vocabulary(self) -> NDArray[np.float32]:
        self.num_looks += 1
        return self.all


def log_sum_exp(logits: NDArray[np.float32]) -> float:
    wide = logits.astype(np.float64)
    top = float(wide.max())
    return top + float(np.log(np.exp(wide - top).sum())) if np.isfinite(top) else top


def changed_logits(
    logits: NDArray[np.float32], how: Sampling, prompt: Sequence[int], answer: Sequence[int], end_ids: Sequence[int]
) -> NDArray[np.float64]:
    """The logits after penalties, bias and what is held back."""
    changed = logits.astype(np.float64)
    for token in range(len(changed)):
        if token in prompt or token in answer:
            factor = how.repetition_penalty
            changed[token] = changed[token] / factor if changed[token] > 0 else changed[token] * factor
        changed[token] -= how.frequency_penalty * answer.count(token)
        changed[token] -= how.presence_penalty * (token in answer)
        changed[token] += how.logit_bias.get(token, 0)
        if token in end_ids and len(answer) < how.min_tokens:
            changed[token] = -np.inf
    return changed


def probabilities(logits: NDArray[np.floating], how: Sampling) -> NDArray[np.float64]:
    """What temperature, top_k, top_p and min_p leave."""
    scaled = logits.astype(np.float64) / how.temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-logits, kind="stable")
    likely = weights >= how.min_p * weights.max()
    if how.top_k:
        weights[order[how.top_k :]] = 0
    weights /= weights.sum()
    if how.top_p < 1:
        sums = np.cumsum(weights[order])
        weights[order[int(np.searchsorted(sums, how.top_p)) + 1 :]] = 0
    weights[~likely] = 0
    return weights / weights.sum()
