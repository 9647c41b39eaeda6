"""Budgets and the record of usage, as tables of the configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from proxy.budget_windows import Period, zone_of
from proxy.config import Table
from proxy.keys import MAX_AMOUNT
from proxy.units import Duration, Size

Amount = Annotated[int, Field(ge=1, le=MAX_AMOUNT)]


def _zone(value: str) -> str:
    zone_of(value)
    return value


class Budget(Table):
    """What may be used in a time, by each API key, team or tenant, or by all together."""

    key: Literal["api_key", "team", "tenant", "all"] = "api_key"
    tokens: Amount | None = None
    requests: Amount | None = None
    per: Period = "month"
    window: Literal["calendar", "rolling"] = "calendar"  # rolling: any hour, any day, any 30 days
    time_zone: Annotated[str, AfterValidator(_zone)] = "UTC"  # of the calendar
    headers: tuple[Literal["ietf"], ...] = ("ietf",)

    @model_validator(mode="after")
    def _whole(self) -> Budget:
        if self.tokens is None and self.requests is None:
            raise ValueError("say how much: `tokens: 5000000`, `requests: 10000`, or both")
        if self.window == "rolling" and self.time_zone != "UTC":
            raise ValueError("a rolling window has no time zone; remove time_zone, or use calendar")
        return self


class Usage(Table):
    """A SQLite file, in which is kept who has used how many tokens of which model."""

    path: Annotated[str, Field(min_length=2, pattern="^/")]  # made if it is not there; its directory must be
    keep: Annotated[Duration, Field(ge=32 * 86400.0)] = 400 * 86400.0  # a month's budget is counted again from it
    size: Annotated[Size, Field(ge=16 << 20)] = 256 << 20  # of the file; the oldest makes room
