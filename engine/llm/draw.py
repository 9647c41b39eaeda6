"""A token drawn from a row after temperature, top_k, top_p and min_p, in this order.

Pure. A draw is exact: it inverts the cumulative distribution at one uniform number, and the K candidates are used only
when every value that the unknown rest may add to the total leads to the same token; otherwise the whole row is taken.
Either way the same number gives the same token, so a seed reproduces a text. Each of the three leaves a number of the
best tokens, so together they leave the smallest of these numbers; top_p's part is one of what top_k leaves.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from engine.llm.row import Row
from engine.llm.sampling import Sampling

_BLOCK = 256  # tokens


def draw(row: Row, sampling: Sampling, point: float) -> int:
    """The token at ``point`` in [0, 1). The temperature is not 0."""
    token = _among_candidates(row, sampling, point)
    return _among_all(row, sampling, point) if token is None else token


def _among_candidates(row: Row, sampling: Sampling, point: float) -> int | None:
    """The token at ``point`` if the K candidates settle it, else None."""
    temperature = sampling.temperature
    scaled = (row.logits.astype(np.float64) - float(row.logits[0])) / temperature
    weights = np.exp(scaled)
    sums = np.cumsum(weights)
    num_likely = _count_likely(weights, sampling.min_p)
    if sampling.top_k:
        if sampling.top_k > len(sums):
            return None
        sums = sums[: sampling.top_k]
        least = most = float(sums[-1])
    else:
        least, most = _total_bounds(row, scaled, float(sums[-1]), temperature)
        if sampling.min_p and num_likely is None:
            least = float(sums[-1])  # all of the rest may be cut off
    index = _invert(sums, least, num_likely, sampling.top_p, point)
    if index is None or (most > least and index != _invert(sums, most, num_likely, sampling.top_p, point)):
        return None
    return int(row.ids[index])


def _total_bounds(row: Row, scaled: NDArray[np.float64], mass: float, temperature: float) -> tuple[float, float]:
    """Between what the weights exp((l - l0) / T) of the whole vocabulary sum up to; the candidates' sum is ``mass``.

    At T = 1 the rest is known from logsumexp. Otherwise, with r = sum of exp(l - l0) over the rest: for T < 1 no token
    of the rest is above the last candidate, so the rest is at most r * exp((l_K - l0) * (1/T - 1)); for T > 1, by the
    power mean inequality, at most n^(1 - 1/T) * r^(1/T) for n tokens; n is not known here, and 2^20 is above it.
    """
    plain = mass if temperature == 1.0 else float(np.exp(scaled * temperature).sum())
    rest = max(0.0, math.exp(row.logsumexp - float(row.logits[0])) - plain)
    if temperature == 1.0:
        return mass + rest, mass + rest
    rest += 1e-5 * plain  # logsumexp is float32: what was rounded away must stay inside the bound
    if temperature < 1.0:
        return mass, mass + rest * math.exp(float(scaled[-1]) * (1.0 - temperature))
    return mass, mass + float(1 << 20) ** (1.0 - 1.0 / temperature) * rest ** (1.0 / temperature)


def _count_likely(weights: NDArray[np.float64], min_p: float) -> int | None:
    """How many of the best, whose weight is 1, min_p leaves; None: all of these, and perhaps more."""
    if weights[-1] >= min_p:
        return None
    return len(weights) - int(np.searchsorted(weights[::-1], min_p))


def _invert(sums: NDArray[np.float64], total: float, most: int | None, top_p: float, point: float) -> int | None:
    """Where ``point`` of what top_p and ``most`` leave falls in the cumulative ``sums``; None: beyond them."""
    mass = total
    if top_p < 1.0:
        last = int(np.searchsorted(sums, top_p * total))
        if last < len(sums):
            most = min(last + 1, most or len(sums))
        elif most is None:
            return None
    if most is not None:
        mass = float(sums[min(most, len(sums)) - 1])
    index = int(np.searchsorted(sums, point * mass, side="right"))
    return index if index < len(sums) else None


def _among_all(row: Row, sampling: Sampling, point: float) -> int:
    """The token at ``point``, from the whole row: the candidates first, as they stand, then the others."""
    weights = np.exp((row.vocabulary - row.logits[0]) / np.float32(sampling.temperature))
    candidates = weights[row.ids]
    weights[row.ids] = 0.0
    if sampling.top_k or sampling.top_p < 1.0 or sampling.min_p:
        return _among_best(row, candidates, weights, sampling, point)
    return _among_rest(row, candidates, weights, point)


def _among_rest(row: Row, candidates: NDArray[np.float32], weights: NDArray[np.float32], point: float) -> int:
    """Nothing is cut off, so the others stand in the order of their ids; summed by blocks, for there are many."""
    sums = np.cumsum(candidates, dtype=np.float64)
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64)
    ends = float(sums[-1]) + np.cumsum(blocks)
    target = point * float(ends[-1])
    if target < sums[-1]:
        return int(row.ids[np.searchsorted(sums, target, side="right")])
    block = min(int(np.searchsorted(ends, target, side="right")), len(blocks) - 1)
    begin = block * _BLOCK
    inside = np.cumsum(weights[begin : begin + _BLOCK], dtype=np.float64)
    index = int(np.searchsorted(inside, target - float(ends[block] - blocks[block]), side="right"))
    return begin + min(index, int(np.searchsorted(inside, inside[-1])))  # the last one that weighs anything


def _among_best(
    row: Row, candidates: NDArray[np.float32], weights: NDArray[np.float32], sampling: Sampling, point: float
) -> int:
    """Only the best are left: as many of the others are sorted as it takes to reach the last of them."""
    mass = float(candidates.sum(dtype=np.float64))
    total = mass + float(weights.sum(dtype=np.float64))
    floor = float(candidates[-1])
    while True:
        floor = floor / 8 if floor > 1e-12 else 0.0
        rest = np.flatnonzero(weights > floor)
        if sampling.top_k:
            reached = len(row.ids) + len(rest) >= sampling.top_k
        else:
            reached = (
                sampling.top_p < 1.0 and mass + float(weights[rest].sum(dtype=np.float64)) >= sampling.top_p * total
            )
        if reached or floor < sampling.min_p or not floor:
            break
    rest = rest[np.argsort(-weights[rest], kind="stable")]
    ids = np.concatenate((row.ids, rest))
    ordered = np.concatenate((candidates, weights[rest])).astype(np.float64)
    sums = np.cumsum(ordered)
    if sampling.top_k:
        sums = sums[: sampling.top_k]
        total = float(sums[-1])
    most = _count_likely(ordered, sampling.min_p) or len(ordered)
    index = _invert(sums, total, most, sampling.top_p, point)
    return int(ids[len(sums) - 1 if index is None else index])
