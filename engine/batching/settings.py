"""How a model's requests are batched: what an operator may say, in SI units. Plain data, pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from engine.batching.window import PolicyName

Cost = Literal["items", "tokens", "pixels"]
Lines = Literal["every", "second", "none"]
LEVEL_NAMES = ("high", "normal", "low")


@dataclass(frozen=True, slots=True)
class LevelSettings:
    """What waits of one level at most."""

    queue: int | None = None  # requests that may wait beside a running batch; beyond it: 503; None: the model's alone
    timeout_s: float | None = None  # one that waits longer is refused with 503; None: none is


@dataclass(frozen=True, slots=True)
class BatchingSettings:
    """None: what the model's folder says, else the default."""

    max_batch: int | None = None  # rows per run
    window_s: float | Literal["auto"] | None = None  # how long a free device may wait for company; auto: while it pays
    policy: PolicyName | None = None
    cost: Cost | None = None  # what a row's size is
    levels: tuple[LevelSettings, LevelSettings, LevelSettings] = (LevelSettings(), LevelSettings(), LevelSettings())
    slo_p99_s: float | None = None  # of a request, from its arrival to its result; waiting may not break it
    log: Lines | None = None  # of the line for each run: all, one a second, none

    def __post_init__(self) -> None:
        if self.max_batch is not None and self.max_batch < 1:
            raise ValueError("max_batch must be at least 1")
        if isinstance(self.window_s, float | int) and self.window_s < 0:
            raise ValueError("window_s must not be below 0")
        if self.slo_p99_s is not None and self.slo_p99_s <= 0:
            raise ValueError("slo_p99_s must be above 0")
        for name, level in zip(LEVEL_NAMES, self.levels, strict=True):
            if (level.queue is not None and level.queue < 1) or (level.timeout_s is not None and level.timeout_s <= 0):
                raise ValueError(f"level {name}: queue must be at least 1 and timeout_s above 0")

    def over(self, defaults: BatchingSettings) -> BatchingSettings:
        """These, and what the defaults say where these say nothing."""
        unsaid = {each.name: getattr(defaults, each.name) for each in fields(self) if getattr(self, each.name) is None}
        return replace(self, **unsaid)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BatchingSettings:
        """The settings of which ``dataclasses.asdict`` gave this. Raises TypeError, ValueError."""
        if "levels" not in value:
            return cls(**value)
        high, normal, low = (LevelSettings(**level) for level in value["levels"])
        return cls(**{**value, "levels": (high, normal, low)})


DEFAULTS = BatchingSettings(max_batch=16, window_s="auto", policy="adaptive", cost="items", log="second")
