"""What the parser neither bounds nor tells of a client's bytes: half heads, the request line's form, chunk frames.

Owns what is remembered of bytes between two reads, and the judgement on them: a Refusal, or None. Time is handed in.
Pure, but for the type of the body reader.
"""

from __future__ import annotations

import re
from typing import Final

from proxy.body import RequestBody
from proxy.config import ListenerLimits
from proxy.errors import Kind
from proxy.gate import Refusal

#: Chunk frames and extensions may weigh this many times the payload, plus a constant: one-byte chunks weigh five.
_CHUNK_OVERHEAD: Final = 8
_CHUNK_OVERHEAD_BYTES: Final = 65536
_SPACE: Final = 32
_is_canonical: Final = re.compile(rb"[\r\n]*[^ \r\n]+ [^ \r\n]+ HTTP/[^ \r\n]{3}\r\n").match


class HeadWatch:
    """One connection's. ``head_began_at``: when the first bytes of a head came that is not complete yet; 0.0: none."""

    __slots__ = ("_first_line", "_head_bytes", "_limits", "_line_known", "_raw_bytes", "head_began_at")

    def __init__(self, limits: ListenerLimits) -> None:
        self._limits = limits
        self._line_known = True  # where the next head begins: with ``_first_line`` and what comes next
        self._first_line = b""  # of a head that is not complete yet, and how long that head is
        self._head_bytes = 0
        self._raw_bytes = 0  # of the chunked body in progress, with its frames
        self.head_began_at = 0.0

    def part_of_head(self, data: bytes, now: float) -> Refusal | None:
        """Bytes of a head that they do not complete, nobody being served."""
        if not self.head_began_at:
            self.head_began_at = now
        if b"\n" not in self._first_line.lstrip(b"\r\n"):
            self._first_line += data
        self._head_bytes += len(data)
        limit = self._limits.line + self._limits.headers
        if self._head_bytes > limit:
            return Refusal(Kind.HEADERS_TOO_LARGE, f"the request head exceeds {limit} bytes")
        return None

    def no_head(self) -> None:
        """Bytes that are of no head, or behind one that waits: where the next begins is not known."""
        self._line_known = False

    def has_bad_line(self, data: bytes, method: str, target: str) -> bool:
        """Bytes that complete a head: whether its line is none. method, target: as parsed.

        llhttp does not tell RTSP from HTTP, nor one space from two, so the line is looked at in the bytes that came.
        Where it is not known to stand, behind a body or in the midst of others, it is taken as parsed, and re-made like
        any.
        """
        if not self._line_known or not data:
            return False
        if not self._first_line:  # all is here: the usual line needs no pattern
            gap = len(method)
            end = gap + 1 + len(target)
            if data[gap + 1] > _SPACE and data[gap] == _SPACE and data[end : end + 11] == b" HTTP/1.1\r\n":
                return False
        return not _is_canonical(self._first_line + data)

    def head_is_over(self) -> None:
        """The head in progress is complete, or refused."""
        if self.head_began_at:
            self._first_line = b""
            self._head_bytes = 0
            self.head_began_at = 0.0

    def behind_heads(self, data: bytes, has_body: bool, deaf: bool, now: float) -> Refusal | None:
        """What stands behind the last head in bytes that completed one. has_body: of that head's request. deaf: nothing
        more is heard."""
        end = data.rfind(b"\r\n\r\n") + 4
        self._line_known = end > 3 and not has_body
        if self._line_known and end < len(data) and not deaf:
            return self.part_of_head(data[end:], now)
        return None

    def begin_body(self) -> None:
        """A request's turn has come."""
        self._raw_bytes = 0

    def part_of_chunks(self, num_bytes: int, body: RequestBody) -> Refusal | None:
        """Bytes of a chunked body that is being read."""
        self._raw_bytes += num_bytes
        if not body.complete and self._raw_bytes > (1 + _CHUNK_OVERHEAD) * body.received_bytes + _CHUNK_OVERHEAD_BYTES:
            return Refusal(Kind.BAD_REQUEST, f"chunk frames exceed {_CHUNK_OVERHEAD} times their payload")
        return None
