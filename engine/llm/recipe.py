"""How a request wants its answers made: how tokens are chosen, what ends an answer, how many. Plain data, pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.llm.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Recipe:
    """Holds for each of a request's answers."""

    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = None  # None: each answer draws its own
    max_tokens: int | None = None  # of an answer; None: as many as fit
    stops: tuple[str, ...] = ()  # strings that end an answer and are not part of it
    stop_token_ids: tuple[int, ...] = ()  # tokens that do so, beside the model's own
    ignore_eos: bool = False  # the model's own end tokens do not end an answer
    n: int = 1  # answers to each prompt
