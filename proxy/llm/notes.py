"""What an answer says about itself where its prompt was made shorter here: headers, and the field ``headrace``. Pure.

As the engine says it of what it cuts by itself: the header ``headrace-truncated-tokens``, and the member
``headrace.truncated_tokens`` in the body or in each chunk of a stream. Numbers that the upstream has told are added to.
Tokens of requests that were made for this one before it are added to its ``usage``. No other byte is touched, and an
answer that cannot be read goes on as it is: its header tells all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.answer_filter import AnswerFilter
from proxy.exchange import Exchange, Head
from proxy.llm.events import EventSplitter, event_data
from proxy.llm.splice import with_member

MAX_BYTES: Final = 8 << 20  # of an answer in one piece; a longer one keeps its body
_FIELD: Final = "headrace"
_DIGITS: Final = 15


def add_headers(head: Head, notes: Mapping[str, int]) -> None:
    """Say it in the head of the answer."""
    for name, number in notes.items():
        field = f"headrace-{name.replace('_', '-')}".encode()
        theirs = head.get(field) or b""
        if theirs.isdigit() and len(theirs) < _DIGITS:
            number += int(theirs)
            head.headers = [row for row in head.headers if row[0].lower() != field]
        head.headers.append((field, b"%d" % number))


class NotesFilter(AnswerFilter):
    """notes: names and numbers. usage: (prompt, completion, cached) tokens to be added. Both may be set until the
    answer begins."""

    __slots__ = ("_held", "_num_bytes", "_splitter", "notes", "usage")

    def __init__(self, notes: Mapping[str, int], usage: tuple[int, int, int] = (0, 0, 0)) -> None:
        self.notes = notes
        self.usage = usage
        self._splitter: EventSplitter | None = None
        self._held: list[bytes] | None = None
        self._num_bytes = 0

    def head(self, x: Exchange, head: Head) -> None:
        self._splitter, self._held, self._num_bytes = None, None, 0
        kind = (head.get(b"content-type") or b"").lstrip().lower()
        if head.get(b"content-encoding") is not None or x.method == "HEAD":
            return
        if kind.startswith(b"text/event-stream"):
            self._splitter = EventSplitter()
            head.content_length = None
        elif kind.startswith(b"application/json"):
            self._held = []
            head.content_length = None

    def data(self, data: bytes) -> bytes:
        if self._splitter is not None:
            return b"".join(map(self._noted_event, self._splitter.feed(data)))
        if self._held is None:
            return data
        self._held.append(data)
        self._num_bytes += len(data)
        if self._num_bytes <= MAX_BYTES:
            return b""
        return self._taken()

    def end(self) -> bytes:
        if self._splitter is not None:
            return self._noted_event(self._splitter.rest())
        return self._noted(self._taken()) if self._held is not None else b""

    def broken(self) -> None:
        self._splitter = self._held = None

    def _taken(self) -> bytes:
        held, self._held = self._held, None
        return b"".join(held or ())

    def _noted_event(self, event: bytes) -> bytes:
        data = event_data(event)
        if not data.startswith(b"{") or event.count(data) != 1:  # no chunk, or written over several lines
            return event
        return event.replace(data, self._noted(data))

    def _noted(self, body: bytes) -> bytes:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            return body
        if not isinstance(value, dict) or "error" in value:
            return body
        usage = value.get("usage")
        if any(self.usage) and isinstance(usage, dict):
            body = with_member(body, "usage", orjson.dumps(_summed(usage, self.usage)))
        own = value.get(_FIELD)
        notes = dict(own) if isinstance(own, dict) else {}
        for name, number in self.notes.items():
            notes[name] = _whole(notes.get(name)) + number
        return with_member(body, _FIELD, orjson.dumps(notes)) if notes else body


def _summed(usage: dict[str, Any], more: tuple[int, int, int]) -> dict[str, Any]:
    """A usage with these tokens added."""
    prompt, completion, cached = more
    summed = dict(usage)
    for name, number in (("prompt_tokens", prompt), ("completion_tokens", completion)):
        summed[name] = _whole(usage.get(name)) + number
    summed["total_tokens"] = summed["prompt_tokens"] + summed["completion_tokens"]
    details = usage.get("prompt_tokens_details")
    if cached and isinstance(details, dict):
        summed["prompt_tokens_details"] = {**details, "cached_tokens": _whole(details.get("cached_tokens")) + cached}
    return summed


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
