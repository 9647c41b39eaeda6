"""One text made shorter by leaving out whole sentences and lines of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

from proxy.llm.segments import segments, sentences

#: Which part of a text goes.
Part = Literal["start", "middle", "end"]
#: Stands where something was left out.
MARK: Final = "[\u2026]"
MARK_TOKENS: Final = 4  # with the white space around it
#: A sentence with more than a quarter of what may stay is divided, but a short one only where else nothing stays.
_SHARE: Final = 4
_SHORT: Final = 16


def shorten(text: str, most_tokens: int, part: Part, count: Callable[[str], int]) -> str:
    """The text with as much of ``part`` left out as must be, and a mark there; "" where not even a little can stay."""
    room = most_tokens - MARK_TOKENS
    pieces = sentences(text) if room > 0 else []
    while room > 0:
        grain = room // _SHARE
        kept = _without(text, pieces, room, part, max(_SHORT, grain), count)
        if kept == MARK and grain < _SHORT:
            kept = _without(text, pieces, room, part, max(1, grain), count)
        over = count(kept) - most_tokens
        if over <= 0:
            return kept if kept != MARK else ""
        room -= over
    return ""


def _without(
    text: str, pieces: Sequence[str], room: int, part: Part, grain: int, count: Callable[[str], int]
) -> str:  # fmt: skip
    """grain: tokens of a segment that stays whole."""
    head = num_tokens = 0  # characters that stay at the beginning, and tokens of all that stays
    if part != "start":
        most = room // 2 if part == "middle" else room
        for segment in segments(pieces, grain, count):
            if num_tokens + segment.tokens > most:
                break
            num_tokens += segment.tokens
            head += len(segment.text)
    tail = len(text)  # where what stays at the end begins
    if part != "end":
        for segment in segments(reversed(pieces), grain, count, backwards=True):
            if num_tokens + segment.tokens > room or tail - len(segment.text) < head:
                break
            num_tokens += segment.tokens
            tail -= len(segment.text)
    before, after = text[:head].rstrip(), text[tail:]
    gap = "\n" if "\n" in text[len(before) : head] or text[tail - 1 : tail] == "\n" else " "
    return gap.join([each for each in (before, MARK, after) if each])
