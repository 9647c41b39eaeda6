"""Random digits for the ids of requests and traces, many of them from one system call."""

from __future__ import annotations

import os
from typing import Final

_DRAWN_BYTES: Final = 4096


class HexDigits:
    """A supply of random hexadecimal digits, none given twice."""

    __slots__ = ("_at", "_drawn")

    def __init__(self) -> None:
        self._drawn = ""
        self._at = 0

    def draw(self, num_bytes: int) -> str:
        """The digits of ``num_bytes`` bytes (at most 4,096), two a byte."""
        begin = self._at
        end = begin + 2 * num_bytes
        if end > len(self._drawn):
            self._drawn = os.urandom(_DRAWN_BYTES).hex()
            begin, end = 0, 2 * num_bytes
        self._at = end
        return self._drawn[begin:end]
