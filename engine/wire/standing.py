"""The standing of a request, from its headers.

``headrace-key`` is the API key's id: the edge sets it, and lets no client do so. ``headrace-priority`` (high, normal,
low) and ``headrace-deadline`` (``2s``, ``500ms``, from the arrival of the request) are the client's: a priority counts
among the requests of the same key, so it takes nothing from others. ``headrace-timeout`` is how long the client waits
for the answer to begin; one that is not streamed begins when it is done, so there it is a deadline, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.errors import invalid
from engine.llm.standing import Standing

KEY, PRIORITY = "headrace-key", "headrace-priority"
DEADLINE, TIMEOUT = "headrace-deadline", "headrace-timeout"
_PRIORITIES = {"high": 0, "normal": 1, "low": 2}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s)")
_UNIT_S = {"ms": 0.001, "s": 1.0}
_MAX_KEY_CHARACTERS = 256


def read_standing(headers: Mapping[str, str], now: float, *, streams: bool = False) -> Standing:
    """What the headers say; without them: no key, normal, no deadline. now: when the request came, in monotonic
    seconds. streams: the answer is streamed. Raises RequestError (400)."""
    key = headers.get(KEY, "")
    if len(key) > _MAX_KEY_CHARACTERS:
        raise invalid(f"{KEY} must be at most {_MAX_KEY_CHARACTERS} characters long", KEY)
    priority = _PRIORITIES.get(headers.get(PRIORITY, "normal"))
    if priority is None:
        raise invalid(f"{PRIORITY} must be one of {', '.join(_PRIORITIES)}", PRIORITY)
    instants = [now + _seconds(headers[name], name) for name in (DEADLINE, TIMEOUT) if name in headers]
    if streams and TIMEOUT in headers:
        del instants[-1]
    return Standing(key, priority, min(instants, default=None))


def _seconds(text: str, name: str) -> float:
    duration = _DURATION.fullmatch(text)
    if duration is None:
        raise invalid(f"{name} must be a duration like 2s or 500ms", name)
    return float(duration[1]) * _UNIT_S[duration[2]]
