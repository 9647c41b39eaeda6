"""Server-sent events, whole, out of the bytes of a stream as they come: nothing is re-encoded, nothing is lost. Pure.

An event ends with a blank line; a line ends with CR, LF or CRLF (HTML §9.2.6). What is split can be put together again:
the events and the rest are the stream.
"""

from __future__ import annotations

import re
from typing import Final

MAX_EVENT_BYTES: Final = 256 << 10

_END: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE: Final = re.compile(rb"\r\n|\n|\r")
_END_BYTES: Final = 4


class EventSplitter:
    """One stream's. overflowed: an event is longer than ``max_bytes``; until it ends its bytes pass in pieces as they
    came."""

    __slots__ = ("_max_bytes", "_pending", "_tail", "overflowed")

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pending = b""
        self._tail = b""  # of what has passed of an event that is too long
        self.overflowed = False

    def feed(self, data: bytes) -> list[bytes]:
        """The events that these bytes complete, each with its blank line."""
        if self.overflowed:
            return self._go_on(data) if data else []
        if not self._pending and data[-2:] == b"\n\n" and data.find(b"\n\n") == len(data) - 2 and b"\r" not in data:
            return [data]  # as nearly every event comes
        scanned = max(0, len(self._pending) - _END_BYTES + 1)
        data = self._pending + data
        events: list[bytes] = []
        begin = 0
        while (found := _END.search(data, max(begin, scanned))) is not None:
            events.append(data[begin : found.end()])
            begin = found.end()
        self._pending = data[begin:]
        if len(self._pending) > self._max_bytes:
            self.overflowed = True
            events.append(self.rest())
            self._tail = events[-1][1 - _END_BYTES :]
        return events

    def _go_on(self, data: bytes) -> list[bytes]:
        """Pass an event that is too long on, up to its end; then what follows it."""
        seen = self._tail + data
        found = _END.search(seen)
        if found is None:
            self._tail = seen[1 - _END_BYTES :]
            return [data]
        end = found.end() - len(self._tail)
        self.overflowed = False
        return [data[:end], *self.feed(data[end:])]

    def rest(self) -> bytes:
        """What came behind the last whole event; asked for at the end of the stream."""
        rest, self._pending = self._pending, b""
        return rest


def event_data(event: bytes) -> bytes:
    """The data of an event: its ``data`` lines, joined by LF; b"" for a comment or an event without any."""
    if (
        event.startswith(b"data: ")
        and event.endswith(b"\n\n")
        and event.find(b"\n") == len(event) - 2
        and b"\r" not in event  # which ends a line, too
    ):
        return event[6:-2]  # as nearly every event is written
    lines = []
    for line in _LINE.split(event):
        if line.startswith(b"data:"):
            value = line[5:]
            lines.append(value[1:] if value.startswith(b" ") else value)
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines)
