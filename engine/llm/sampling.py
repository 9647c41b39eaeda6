"""How a request wants its tokens chosen, and what a choice is. Plain data, pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Sampling:
    """The defaults choose from the model's own distribution.

    temperature to min_p leave a part of the distribution, in this order; see ``engine.llm.draw``. The penalties, the
    bias and min_tokens change logits before it; see ``engine.llm.penalties``.
    """

    temperature: float = 1.0  # below GREEDY_BELOW: the best token
    top_k: int = 0  # the best so many tokens; 0: all
    top_p: float = 1.0  # of those, the fewest best ones that hold this part of the mass
    min_p: float = 0.0  # of those, the ones at least this part as likely as the best
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # by token
    min_tokens: int = 0  # the tokens that end an answer are out of the question before so many were chosen
    logprobs: int | None = None  # log probabilities of each chosen token and of so many best ones; None: of nothing


class Choice(NamedTuple):
    """A chosen token and, where they were asked for, log probabilities by the model's own distribution.

    That is the one before penalties, bias and temperature. Natural logarithms.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # ids and log probabilities, the most likely first
