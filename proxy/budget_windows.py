"""The times for which budgets are given: hours, days and months of a calendar in a time zone. Pure.

A window begins where its local hour, day or month does, so a day with a change of clocks has 23 or 25 hours. An hour
that the clock shows twice is two windows; a midnight that it shows twice begins one, the first time. Instants are
seconds of Unix time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

Period = Literal["hour", "day", "month"]

#: Of a rolling window; of a calendar's about so long.
PERIOD_S: Final[dict[str, float]] = {"hour": 3600.0, "day": 86400.0, "month": 30 * 86400.0}
#: Where, counted from a window's begin, only the next one can be; an hour may need the later ones.
_BEYOND_S: Final[dict[str, tuple[float, ...]]] = {
    "hour": (3600.0, 5400.0, 7200.0),
    "day": (36 * 3600.0,),
    "month": (45 * 86400.0,),
}


class Window(NamedTuple):
    """From ``start`` on, before ``end``."""

    start: float
    end: float


def zone_of(name: str) -> tzinfo:
    """The time zone of an IANA name. Raises ValueError if this box knows none."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{name!r} is no time zone of this box; write one like Europe/Berlin, or UTC") from None


def window_at(wall: float, per: Period, zone: tzinfo) -> Window:
    """The window of the calendar that an instant is in."""
    start = _start_of(wall, per, zone)
    end = next(end for beyond in _BEYOND_S[per] if (end := _start_of(start + beyond, per, zone)) > start)
    return Window(start, end)


def _start_of(wall: float, per: Period, zone: tzinfo) -> float:
    local = datetime.fromtimestamp(wall, zone)
    if per == "hour":
        return local.replace(minute=0, second=0, microsecond=0).timestamp()
    start = local.replace(day=1 if per == "month" else local.day, hour=0, minute=0, second=0, microsecond=0, fold=0)
    # Between the first and the second of two midnights the clock shows the day before again.
    further = start + timedelta(days=1 if per == "day" else 32)
    following = further if per == "day" else further.replace(day=1)
    return following.timestamp() if following.timestamp() <= wall else start.timestamp()
