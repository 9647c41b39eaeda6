"""The next token from a row of logits: greedy or drawn, after what was said has been held against it.

Pure. Owns the order of the parts and one sequence's state: its penalties' counts and its random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from engine.llm.draw import draw
from engine.llm.penalties import Penalties
from engine.llm.row import Row
from engine.llm.sampling import Choice, Sampling

GREEDY_BELOW = 1e-5  # a temperature below this is argmax: dividing by it would only overflow


class BadLogitsError(ArithmeticError):
    """The row holds no distribution: NaN, or nothing finite."""


class Sampler:
    """Chooses one sequence's tokens.

    uniform: gives numbers in [0, 1), one per token. prompt, end_ids: see ``engine.llm.penalties.Penalties``.
    """

    def __init__(
        self,
        sampling: Sampling,
        uniform: Callable[[], float],
        *,
        prompt: Collection[int] = (),
        end_ids: Collection[int] = (),
    ) -> None:
        self._sampling = sampling
        self._greedy = sampling.temperature < GREEDY_BELOW
        self._uniform = uniform
        self._penalties = Penalties(sampling, prompt, end_ids)

    def pick(self, row: Row) -> Choice:
        """The next token; to be called once for each that is emitted, in order. Raises BadLogitsError."""
        _check(row)
        changed = self._penalties.apply(row)
        if changed is not row:
            _check(changed)
        token = int(changed.ids[0]) if self._greedy else draw(changed, self._sampling, self._uniform())
        self._penalties.count(token)
        count = self._sampling.logprobs
        return Choice(token) if count is None else _with_logprobs(row, token, count)


def _check(row: Row) -> None:
    if not (math.isfinite(row.logsumexp) and math.isfinite(row.logits[0])):
        raise BadLogitsError("the model gave no finite probabilities for the next token")


def _with_logprobs(row: Row, token: int, count: int) -> Choice:
    best = (row.logits[:count] - row.logsumexp).tolist()
    logprob = float(row.vocabulary[token]) - row.logsumexp
    return Choice(token, logprob, tuple(zip(row.ids[:count].tolist(), best, strict=True)))
