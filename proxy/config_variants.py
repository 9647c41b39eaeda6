"""The tables of ``policies: {variants: ...}``: what is tried on a route's users beside what they have, and how long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from proxy.config import HashOf, Table
from proxy.config_models import ModelName
from proxy.config_policies import Changes
from proxy.units import Duration, Percent
from proxy.variants.assignment import MAX_VARIANTS, why_not

#: What a user is when nobody gets a variant: an arm like the others, whose name no variant may have.
CONTROL = "control"

VariantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Rule = Literal["harm", "futility"]


class Variant(Table):
    """What is otherwise for its share of the users: at least one of to, model and headers."""

    share: Percent  # 1% to 20%; 0%: nobody
    to: Annotated[str, Field(min_length=1)] | None = None  # another upstream; not on routes by models
    model: ModelName | None = None  # instead of the one that is asked for; a model route on routes by models
    headers: Changes = Changes()  # of the request

    @model_validator(mode="after")
    def _varies(self) -> Variant:
        if self.to is None and self.model is None and self.headers == Changes():
            raise ValueError("it is as the control is; say `to`, `model` or `headers`")
        return self


class Stop(Table):
    """When a variant is stopped. harm: it is worse, with a p below ``p``, for ``after``; futility: no difference shows,
    p is above it, for as long, with ``min_samples`` of it and of the control."""

    rules: tuple[Rule, ...] = ("harm", "futility")
    p: Annotated[Percent, Field(gt=0, lt=1)] = 0.1
    after: Duration = 300.0
    min_samples: Annotated[int, Field(ge=1)] = 10_000


class Outcomes(Table):
    """Where clients tell what became of an answer."""

    path: Annotated[str, Field(pattern=r"^/[!-~]*$")]  # of this route: POST {"token": ..., "good": true}
    within: Annotated[Duration, Field(gt=0)] = 3600.0  # of the answer; each token counts once


def _arm(value: object) -> str:
    return "text" if isinstance(value, str) else "table"


class Config(Table):
    of: Annotated[dict[VariantName, Variant], Field(min_length=1, max_length=MAX_VARIANTS)]
    #: By what users are told apart; those without it by API key, those without a key by address.
    user: Annotated[
        Annotated[Literal["api_key", "client"], Tag("text")] | Annotated[HashOf, Tag("table")], Discriminator(_arm)
    ] = "api_key"
    models: tuple[ModelName, ...] = ()  # only requests for these take part; (): all
    goal: Literal["success", "outcome"] = "success"  # by which variants are judged
    alpha: Annotated[Percent, Field(gt=0, lt=1)] = 0.05  # chance to call one other than the control that is not
    stop: Stop = Stop()
    outcomes: Outcomes | None = None  # None: nobody tells any

    @model_validator(mode="after")
    def _adds_up(self) -> Config:
        for problem in self.problems():
            raise ValueError(problem)
        return self

    def problems(self) -> Iterator[str]:
        """What is wrong with it as a whole."""
        for name, variant in self.of.items():
            others = [other.share for key, other in self.of.items() if key != name]
            if name == CONTROL:
                yield f"{CONTROL} is what the others are compared with; choose another name"
            if (problem := why_not(name, variant.share, others)) is not None:
                yield problem
        if self.goal == "outcome" and self.outcomes is None:
            yield "goal is outcome, but nobody tells any: set `outcomes: {path: /PATH}`, or judge by success"

    @property
    def reads_models(self) -> bool:
        """Whether it needs the model that a request names, which its body says."""
        return bool(self.models) or any(variant.model is not None for variant in self.of.values())
