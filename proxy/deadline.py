"""Until when an answer is of use to its client: how it says so, and what is passed on. Pure.

A deadline is for the answer as a whole. A client's own timeout is for its beginning: OpenAI's clients stop waiting when
the head is there, and an answer that is not streamed begins when it is done. Both are passed on as what is left of
them when a request is sent, so neither the time spent here nor a retry is forgotten.
"""

from __future__ import annotations

import re
from datetime import datetime
from math import inf
from typing import Final

DEADLINE, TIMEOUT = b"headrace-deadline", b"headrace-timeout"
MAX_S: Final = 86400.0 * 7  # longer is as good as none; the engine reads nine digits of milliseconds
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)")
_SECONDS: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Deadline:
    """Monotonic seconds: when the answer must be complete, and when it must have begun; inf: never."""

    __slots__ = ("begin_at", "end_at")

    def __init__(self, end_at: float = inf, begin_at: float = inf) -> None:
        self.end_at = end_at
        self.begin_at = begin_at

    def passed(self, now: float, begun: bool) -> bool:
        """Whether nobody waits for the answer any more."""
        return now >= self.end_at or (not begun and now >= self.begin_at)

    def fields(self, now: float) -> bytes:
        """What is left, as fields of the request; at least a millisecond, for 0 would be a deadline that has passed."""
        parts = b""
        for name, at in ((DEADLINE, self.end_at), (TIMEOUT, self.begin_at)):
            if at < inf:
                parts += b"%b: %dms\r\n" % (name, max(1, int((at - now) * 1000)))
        return parts


def read_deadline(text: str, wall_now: float) -> float | None:
    """Seconds until a deadline like ``2s``, ``500ms`` or ``2026-01-31T12:00:00Z``; None: it is none of them."""
    duration = _DURATION.fullmatch(text.strip())
    if duration is not None:
        return min(MAX_S, float(duration[1]) * _UNITS[duration[2]])
    try:
        at = datetime.fromisoformat(text.strip())
        return min(MAX_S, at.timestamp() - wall_now) if at.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def read_timeout(text: str) -> float | None:
    """Seconds of a client's timeout, with or without a unit; None: it says none, or one of 0, which is no timeout."""
    text = text.strip()
    seconds = float(text) if _SECONDS.fullmatch(text) else read_deadline(text, inf)
    return seconds if seconds is not None and 0.0 < seconds < MAX_S else None
