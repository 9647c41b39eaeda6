"""What an answer says of its usage, read as it passes to the client; and how much it has shown, if it says nothing.

Of a stream every event is looked at. Where the usage was asked for by us alone, its chunk is taken out, and no other
byte is touched; nothing but an unfinished event waits for that. Of other JSON the usage is looked for at the end: a
long answer is neither kept nor parsed. An answer that is encoded, or no JSON, passes unread. Pure.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from proxy.answer_filter import AnswerFilter
from proxy.llm.events import EventSplitter, event_data
from proxy.llm.usage import Usage, is_usage_chunk, usage_in

if TYPE_CHECKING:
    from proxy.exchange import Exchange, Head

#: What becomes of bytes that nobody counted: about right for English, and for JSON around it.
BYTES_PER_TOKEN: Final = 4
PARSED_BYTES: Final = 64 << 10  # of an answer that is no stream; of a longer one the end is searched
_TAIL_BYTES: Final = 16 << 10
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(?=\{)')
#: Members of a delta that are no text.
_SILENT: Final = frozenset({"role", "name"})


class UsageFilter(AnswerFilter):
    """One exchange's. takes_out: the chunk with the usage is not the client's. status: of the answer, 0: none yet.
    usage: what the upstream has told last; None: nothing. complete: the answer came to its end."""

    __slots__ = ("_after_cr", "_json", "_num_bytes", "_num_tokens", "_pieces", "_splitter", "complete", "status",
                 "takes_out", "usage")  # fmt: skip

    def __init__(self) -> None:
        self.takes_out = False
        self.status = 0
        self._begin()

    def _begin(self) -> None:
        self.usage: Usage | None = None
        self.complete = False
        self._after_cr = False  # what was taken out ended with one
        self._splitter: EventSplitter | None = None
        self._json = False
        self._pieces = b""  # of JSON: all of it, or its end
        self._num_bytes = 0
        self._num_tokens = 0

    def head(self, x: Exchange, head: Head) -> None:
        self._begin()
        self.status = head.status
        if (head.get(b"content-encoding") or b"identity").strip().lower() != b"identity":
            return
        media_type = (head.get(b"content-type") or b"").partition(b";")[0].strip().lower()
        if media_type == b"text/event-stream":
            self._splitter = EventSplitter()
            if self.takes_out:
                head.content_length = None
        else:
            self._json = media_type.endswith((b"/json", b"+json"))

    def data(self, data: bytes) -> bytes:
        self._num_bytes += len(data)
        splitter = self._splitter
        if splitter is not None:
            events = splitter.feed(data)
            if not self.takes_out:
                for event in events:
                    self._look(event)
                return data
            return self._without_usage(events)
        if self._json:
            self._pieces += data
            if self._num_bytes > PARSED_BYTES:
                self._pieces = self._pieces[-_TAIL_BYTES:]
        return data

    def end(self) -> bytes:
        self.complete = True
        if self._splitter is not None:
            rest = self._without_usage([self._splitter.rest()])
            return rest if self.takes_out else b""
        if self._json:
            self.usage = _usage_of(self._pieces, whole=self._num_bytes <= PARSED_BYTES)
            self._pieces = b""
        return b""

    @property
    def completion_tokens(self) -> int:
        """About how many tokens the answer has shown so far."""
        return self._num_tokens if self._splitter is not None else -(-self._num_bytes // BYTES_PER_TOKEN)

    def _without_usage(self, events: list[bytes]) -> bytes:
        """These events but for the usage alone. Of a CRLF that was torn apart between two events each half goes with
        its own."""
        kept = []
        for event in events:
            if self._after_cr and event:
                self._after_cr = False
                event = event.removeprefix(b"\n")
            if self._look(event) and self._splitter is not None and not self._splitter.overflowed:
                kept.append(event[: event.startswith(b"\n")])
                self._after_cr = event.endswith(b"\r")
            else:
                kept.append(event)
        return b"".join(kept)

    def _look(self, event: bytes) -> bool:
        """Take note of one event. Whether it says nothing but the usage."""
        data = event_data(event)
        if not data or data == b"[DONE]":
            return False
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._num_tokens += -(-len(data) // BYTES_PER_TOKEN)
            return False
        if not isinstance(chunk, dict):
            return False
        self.usage = usage_in(chunk) or self.usage
        choices = chunk.get("choices")
        if isinstance(choices, list):
            for choice in choices:
                self._num_tokens += _tokens_of(choice)
        return is_usage_chunk(chunk)


def _tokens_of(choice: Any) -> int:
    """Of what one chunk says of one choice: most upstreams send each token by itself."""
    if not isinstance(choice, dict):
        return 0
    num_bytes = len(text) if isinstance(text := choice.get("text"), str) else 0
    delta = choice.get("delta")
    if isinstance(delta, dict):
        for name, value in delta.items():
            if isinstance(value, str):
                num_bytes += len(value) if name not in _SILENT else 0
            elif value:
                num_bytes += len(orjson.dumps(value))
    return -(-num_bytes // BYTES_PER_TOKEN)


def _usage_of(data: bytes, *, whole: bool) -> Usage | None:
    """Of an answer that is no stream, or of the end of a long one. No text can pass for it: its quotes are escaped."""
    if whole:
        try:
            return usage_in(orjson.loads(data))
        except orjson.JSONDecodeError:
            return None
    for found in reversed(list(_USAGE.finditer(data))):
        try:
            told, _ = _DECODER.raw_decode(data[found.end() :].decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        if (usage := usage_in({"usage": told})) is not None:
            return usage
    return None


_DECODER: Final = json.JSONDecoder()
