"""The standing of a request, from its headers.

``headrace-key`` is the API key's id: the edge sets it, and lets no client do so. ``headrace-priority`` (high, normal,
low) and ``headrace-deadline`` (``2s``, ``500ms``, from the arrival of the request) are the client's: a priority counts
among the requests of the same key, so it takes nothing from others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.errors import invalid
from engine.llm.standing import Standing

KEY, PRIORITY, DEADLINE = "headrace-key", "headrace-priority", "headrace-deadline"
_PRIORITIES = {"high": 0, "normal": 1, "low": 2}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s)")
_UNIT_S = {"ms": 0.001, "s": 1.0}
_MAX_KEY_CHARACTERS = 256


def read_standing(headers: Mapping[str, str], now: float) -> Standing:
    """What the headers say; without them: no key, normal, no deadline. now: when the request came, in monotonic
    seconds. Raises RequestError (400)."""
    key = headers.get(KEY, "")
    if len(key) > _MAX_KEY_CHARACTERS:
        raise invalid(f"{KEY} must be at most {_MAX_KEY_CHARACTERS} characters long", KEY)
    priority = _PRIORITIES.get(headers.get(PRIORITY, "normal"))
    if priority is None:
        raise invalid(f"{PRIORITY} must be one of {', '.join(_PRIORITIES)}", PRIORITY)
    if DEADLINE not in headers:
        return Standing(key, priority)
    duration = _DURATION.fullmatch(headers[DEADLINE])
    if duration is None:
        raise invalid(f"{DEADLINE} must be a duration like 2s or 500ms", DEADLINE)
    return Standing(key, priority, now + float(duration[1]) * _UNIT_S[duration[2]])
