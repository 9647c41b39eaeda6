"""A window that slides over a long text: which stretches of it are looked at one after the other. Pure.

Each window has at most ``max_len`` tokens and begins ``stride`` tokens behind the one before, or sooner where nothing
would be seen in between; it begins and ends with segments. Where a window begins follows from the text before it
alone: while a text grows at its end, all but the last windows stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.llm.segments import Segment


def windows(segments: Sequence[Segment], max_len: int, stride: int) -> list[tuple[int, int]]:
    """(first segment, the one behind the last) of each window. None of them has a segment above ``max_len``."""
    found: list[tuple[int, int]] = []
    begin = 0
    while begin < len(segments):
        end, tokens = begin, 0
        while end < len(segments) and (end == begin or tokens + segments[end].tokens <= max_len):
            tokens += segments[end].tokens
            end += 1
        found.append((begin, end))
        if end == len(segments):
            break
        following, passed = begin, 0
        while following < end and (following == begin or passed < stride):
            passed += segments[following].tokens
            following += 1
        begin = following
    return found


def text_of(segments: Sequence[Segment], window: tuple[int, int]) -> str:
    """What a window shows."""
    return "".join([segment.text for segment in segments[window[0] : window[1]]])
