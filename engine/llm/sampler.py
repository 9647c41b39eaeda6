"""The next token from a row of logits: greedy, or drawn after temperature, top_k and top_p, in this order.

Pure. The graph hands out the K best logits and the log of the sum over the whole vocabulary. A draw is exact: it is
made by inverting the cumulative distribution at one uniform number per token, and the K candidates are used only when
every value that the unknown rest may add to the total leads to the same token; otherwise the whole row is taken. Either
way the same number gives the same token, so a seed reproduces a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

GREEDY_BELOW = 1e-5  # a temperature below this is argmax: dividing by it would only overflow


class Row(Protocol):
    """The distribution of one next token, as the decoder gives it."""

    @property
    def ids(self) -> NDArray[np.int64]: ...  # [K] by descending logit

    @property
    def logits(self) -> NDArray[np.float32]: ...  # [K]

    @property
    def logsumexp(self) -> float: ...  # over the whole vocabulary

    def whole(self) -> NDArray[np.float32]: ...  # [V]


class BadLogitsError(ArithmeticError):
    """The row holds no distribution: NaN, or nothing finite."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose. top_k 0 and top_p 1.0 leave all tokens in."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


class Choice(NamedTuple):
    """A chosen token and, where they were asked for, what the model itself thought of it and of the best ones."""

    token: int
    logprob: float | None = None  # natural logarithm
    top: tuple[tuple[int, float], ...] = ()  # ids and log probabilities, the most likely first


class Sampler:
    """Chooses one sequence's tokens. draw: uniform numbers in [0, 1), one per token."""

    def __init__(self, sampling: Sampling, draw: Callable[[], float]) -> None:
        self._sampling = sampling
        self._greedy = sampling.temperature < GREEDY_BELOW
        self._draw = draw

    def pick(self, row: Row) -> Choice:
        """The next token; to be called once for each that is emitted, in order. Raises BadLogitsError."""
        if not (math.isfinite(row.logsumexp) and math.isfinite(row.logits[0])):
            raise BadLogitsError("the model gave no finite probabilities for the next token")
        if self._greedy:
            return Choice(int(row.ids[0]))
        point = self._draw()
        chosen = _among_candidates(row, self._sampling, point)
        return Choice(_among_all(row, self._sampling, point) if chosen is None else chosen)


def _among_candidates(row: Row, sampling: Sampling, point: float) -> int | None:
    """The token at ``point`` if the K candidates settle it, else None."""
    temperature = sampling.temperature
    scaled = (row.logits.astype(np.float64) - float(row.logits[0])) / temperature
    sums = np.cumsum(np.exp(scaled))
    if sampling.top_k:
        if sampling.top_k > len(sums):
            return None
        sums = sums[: sampling.top_k]
        least = most = float(sums[-1])
    else:
        least, most = _total_bounds(row, scaled, float(sums[-1]), temperature)
    index = _invert(sums, least, sampling.top_p, point)
    if index is None or (most > least and index != _invert(sums, most, sampling.top_p, point)):
        return None
    return int(row.ids[index])


def _total_bounds(row: Row, scaled: NDArray[np.float64], mass: float, temperature: float) -> tuple[float, float]:
    """Between what the weights exp((l - l0) / T) of the whole vocabulary sum up to; the candidates' sum is ``mass``.

    At T = 1 the rest is known from logsumexp. Otherwise, with r = sum of exp(l - l0) over the rest: for T < 1 no token
    of the rest is above the last candidate, so the rest is at most r * exp((l_K - l0) * (1/T - 1)); for T > 1, by the
    power mean inequality, at most n^(1 - 1/T) * r^(1/T) for n tokens; n is not known here, and 2^20 is above it.
    """
    plain = float(np.exp(scaled * temperature).sum())
    rest = max(0.0, math.exp(row.logsumexp - float(row.logits[0])) - plain)
    if temperature == 1.0:
        return mass + rest, mass + rest
    rest += 1e-5 * plain  # logsumexp is float32: what was rounded away must stay inside the bound
    if temperature < 1.0:
        return mass, mass + rest * math.exp(float(scaled[-1]) * (1.0 - temperature))
    return mass, mass + float(1 << 20) ** (1.0 - 1.0 / temperature) * rest ** (1.0 / temperature)


def _invert(sums: NDArray[np.float64], total: float, top_p: float, point: float) -> int | None:
    """Where ``point`` of the nucleus' mass falls in the cumulative ``sums``; None: beyond them."""
    mass = total
    if top_p < 1.0:
        last = int(np.searchsorted(sums, top_p * total))
        if last >= len(sums):
            return None
        mass = float(sums[last])
    index = int(np.searchsorted(sums, point * mass, side="right"))
    return index if index < len(sums) else None


def _among_all(row: Row, sampling: Sampling, point: float) -> int:
    """The token at ``point``, from the whole row: the candidates first, as they stand, then the others."""
    logits = row.whole()
    weights = np.exp((logits.astype(np.float64) - float(row.logits[0])) / sampling.temperature)
    candidates = weights[row.ids]
    weights[row.ids] = 0.0
    if sampling.top_k == 0 and sampling.top_p >= 1.0:
        rest = np.arange(len(weights))
    else:
        # A set of tokens each below (1 - top_p) / V of the mass sums up to less than what top_p cuts off.
        total = float(candidates.sum() + weights.sum())
        floor = (1.0 - sampling.top_p) / len(weights) * total if sampling.top_k == 0 else 0.0
        rest = np.flatnonzero(weights > floor)
        rest = rest[np.argsort(-weights[rest], kind="stable")]
    ids = np.concatenate((row.ids, rest))
    sums = np.cumsum(np.concatenate((candidates, weights[rest])))
    if sampling.top_k:
        sums = sums[: sampling.top_k]
        total = float(sums[-1])
    elif sampling.top_p >= 1.0:
        total = float(sums[-1])
    index = _invert(sums, total, sampling.top_p, point)
    return int(ids[len(sums) - 1 if index is None else index])
