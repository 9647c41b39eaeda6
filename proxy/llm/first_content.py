"""What an event of a streamed answer is: a start-up event, the first that carries content, or a failure. Pure.

A stream may begin with comments, a chunk that only names the role, empty pieces, a count of tokens. None of them has
shown anything to anybody, so another upstream can still answer instead. Content is whatever a person or program would
see: text, reasoning, a refusal, a call of a tool, and also the end of a choice, as an empty answer is one. The end of
the stream is none: what has ended no choice by then has answered nothing. What is not an OpenAI chunk is taken for
content, because nobody knows what to wait for.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import orjson

from proxy.llm.events import event_data


class Told(Enum):
    """What an event says of the answer."""

    STARTING = "nothing yet"
    CONTENT = "it has begun"
    FAILED = "there will be none"


#: Members of a delta that say nothing by themselves.
_SILENT: Final = frozenset({"role", "logprobs", "name"})


def told_by(event: bytes) -> Told:
    """What one whole event says."""
    data = event_data(event)
    if not data or data.strip() == b"[DONE]":
        return Told.STARTING
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        return Told.CONTENT
    if not isinstance(chunk, dict):
        return Told.CONTENT
    if chunk.get("error"):
        return Told.FAILED
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        return Told.CONTENT
    told = Told.STARTING
    for choice in choices:
        of_choice = _of_choice(choice)
        if of_choice is not Told.STARTING:
            told = of_choice
    return told


def _of_choice(choice: Any) -> Told:
    if not isinstance(choice, dict):
        return Told.CONTENT
    reason = choice.get("finish_reason")
    if reason == "error":
        return Told.FAILED
    if reason is not None or choice.get("text"):
        return Told.CONTENT
    delta = choice.get("delta")
    if isinstance(delta, dict) and any(value for name, value in delta.items() if name not in _SILENT):
        return Told.CONTENT
    return Told.STARTING
