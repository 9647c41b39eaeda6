"""Text as its sentences and lines, so that a part of it can go without a word being torn. Pure.

A segment ends behind the end of a line, or behind the marks that end a sentence with their closing quotes, and takes
the white space that follows: all segments together are the text. One that is too long by itself is halved, behind
white space where there is some. What nobody asks for is not counted: segments come one by one, from either end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

#: A run of marks is looked at once, where it begins, so that no text takes longer than its length.
_END: Final = re.compile(
    r"""(?: (?<![.!?\u2026])[.!?\u2026]++["')\]\u2019\u201d\u00bb]*+(?=\s)
          | (?<![\u3002\uff01\uff1f])[\u3002\uff01\uff1f]++[\u300d\u300f\u2019\u201d]*+
          | (?=\n) ) (?: (?:[^\S\n]*+\n)++ | [^\S\n]*+ )""",
    re.VERBOSE,
)
#: Looked through at once, within 3 ms, for which no other thread runs.
_SCANNED_CHARACTERS: Final = 16384
_SPACE: Final = re.compile(r"\s+")
#: Text with more characters for each token than this is rare: what is longer is halved without being counted.
_MOST_CHARACTERS: Final = 8


class Segment(NamedTuple):
    """tokens: as counted by itself."""

    text: str
    tokens: int


def sentences(text: str) -> list[str]:
    """The text in sentences and lines, of any length."""
    pieces = []
    begin = at = 0
    while at < len(text):
        scanned = min(len(text), at + _SCANNED_CHARACTERS)
        found = _END.search(text, at, scanned)
        if found is None:
            at = scanned
        else:
            pieces.append(text[begin : found.end()])
            begin = at = found.end()
    if begin < len(text):
        pieces.append(text[begin:])
    return pieces


def segments(
    pieces: Iterable[str], most_tokens: int, count: Callable[[str], int], *, backwards: bool = False
) -> Iterator[Segment]:
    """The pieces in segments of no more than so many tokens, but for a single character that has more. backwards: the
    pieces come from the end, and so do the segments."""
    for piece in pieces:
        waiting = [piece]
        while waiting:
            part = waiting.pop()
            short = len(part) <= _MOST_CHARACTERS * most_tokens
            tokens = count(part) if short or len(part) == 1 else most_tokens + 1
            if tokens <= most_tokens or len(part) == 1:
                yield Segment(part, tokens)
            else:
                middle = _near_middle(part)
                halves = [part[middle:], part[:middle]]
                waiting += halves[::-1] if backwards else halves


def _near_middle(piece: str) -> int:
    """Behind the first white space of the third quarter; else the middle."""
    middle = len(piece) // 2
    found = _SPACE.search(piece, middle, middle + len(piece) // 4)
    return found.end() if found is not None and found.end() < len(piece) else middle
