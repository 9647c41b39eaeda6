"""An answer's beginning, held back while another upstream could still answer instead. Pure.

Held are the head and the start-up events of a stream, until content comes: for up to MAX_EVENTS and MAX_BYTES, beyond
which it goes to the client as it is. A status that another upstream or key may answer better is no answer; nor is a
stream that says that it failed, or ends, before it has shown anything.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Final

from proxy.llm.error_events import Fault, fault_of
from proxy.llm.events import EventSplitter
from proxy.llm.first_content import Told, told_by

if TYPE_CHECKING:
    from proxy.exchange import Head

MAX_EVENTS: Final = 64
MAX_BYTES: Final = 256 << 10
#: Answers that say something of the upstream, or of our key there, and not of the request. 404: not this model's.
DECLINES: Final = frozenset({401, 402, 403, 404, 408, 409, 425, 429, 500, 502, 503, 504, 529})

_STARTING: Final = Told.STARTING
_CONTENT: Final = Told.CONTENT
_FAILED: Final = Told.FAILED


class Hold:
    """One attempt's. declines: statuses that are no answer. reads: nor are streams that fail before any content. keeps:
    False where there is no other upstream: nothing is held, it is only seen when content comes. fault: what a stream
    that failed has told of."""

    __slots__ = ("_declines", "_num_bytes", "_num_events", "_pieces", "_reads", "_splitter", "fault", "keeps")

    def __init__(self, declines: Container[int] = DECLINES, *, reads: bool = True, keeps: bool = True) -> None:
        self._declines = declines
        self._reads = reads
        self.keeps = keeps
        self._splitter = EventSplitter(MAX_BYTES)
        self._pieces: list[bytes] = []
        self._num_events = 0
        self._num_bytes = 0
        self.fault: Fault | None = None

    def head(self, head: Head) -> Told:
        """What the head says. STARTING: what follows is for ``data``."""
        if head.status in self._declines:
            return _FAILED
        kind = (head.get(b"content-type") or b"").lstrip()[:17].lower()
        if self._reads and kind == b"text/event-stream" and head.get(b"content-encoding") is None:
            return _STARTING
        return _CONTENT

    def data(self, data: bytes) -> Told:
        """What the stream has said by now. Anything but STARTING: the wait is over."""
        if self.keeps:
            self._pieces.append(data)
        self._num_bytes += len(data)
        for event in self._splitter.feed(data):
            told = told_by(event)
            if told is not _STARTING:
                if told is _FAILED:
                    self.fault = fault_of(event)
                return told
            self._num_events += 1
        if self._num_events >= MAX_EVENTS or self._num_bytes >= MAX_BYTES:
            return _CONTENT
        return _STARTING

    def taken(self) -> bytes:
        """All that was held."""
        held = b"".join(self._pieces)
        self._pieces.clear()
        return held
