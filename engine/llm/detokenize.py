"""Tokens to text, piece by piece: what may be shown now, and whether a stop string has ended the text.

Pure. A token is bytes, and bytes may end inside a character: such a tail waits for the next token, and is dropped if
none comes. Text that may be the beginning of a stop string waits too, so no part of one is ever shown. The pieces
joined are the whole text, however tokens cut it: of several stop strings the one that is complete first ends the text,
and of those complete at the same place the longest.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """One sequence's text as it grows. stops: non-empty strings."""

    __slots__ = ("_decode", "_held", "_stops", "num_characters", "stopped")

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stopped = False  # a stop string was found: the text has ended before it
        self.num_characters = 0  # that have come out of the tokens, shown or not
        self._stops = tuple(stops)
        self._held = ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token: bytes, *, may_stop: bool = True) -> str:
        """The text that this token lets out; "" when it only adds to what waits. may_stop: False until an answer is as
        long as was asked at least: stop strings are looked for only in what comes after."""
        text = self._decode(token)
        self.num_characters += len(text)
        if not self._stops or not text or not may_stop:
            return text
        text = self._held + text
        end = self._find_stop(text)
        if end is not None:
            self.stopped, self._held = True, ""
            return text[:end]
        kept = self._count_held(text)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def finish(self) -> str:
        """The text has ended for another reason than a stop string: let out what waited to become one."""
        held, self._held = self._held, ""
        return held

    def _find_stop(self, text: str) -> int | None:
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _count_held(self, text: str) -> int:
        """Characters at the end of ``text`` that a stop string may begin with."""
        longest = max(map(len, self._stops)) - 1
        for count in range(min(longest, len(text)), 0, -1):
            tail = text[-count:]
            if any(len(stop) > count and stop.startswith(tail) for stop in self._stops):
                return count
        return 0
