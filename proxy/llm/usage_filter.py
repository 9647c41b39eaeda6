"""What an answer says of its usage, read as it passes to the client; and how much it has shown, if it says nothing.

Of a stream every event is looked at. Where the usage was asked for by us alone, its chunk is taken out, or what comes
with choices becomes null as in the chunks before, and no other byte is touched; nothing but an unfinished event waits
for that. Of other JSON the usage is looked for at the end, and
its text where there is none: a long answer is neither kept nor parsed. An answer that is encoded, or no JSON, passes
unread. Pure.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from proxy.answer_filter import AnswerFilter
from proxy.llm.events import EventSplitter, event_data
from proxy.llm.splice import with_member
from proxy.llm.usage import Usage, is_usage_chunk, usage_in

if TYPE_CHECKING:
    from proxy.exchange import Exchange, Head

#: What becomes of bytes that nobody counted: about right for English, and for JSON around it.
BYTES_PER_TOKEN: Final = 4
PARSED_BYTES: Final = 64 << 10  # of an answer that is no stream; of a longer one the end is searched
_TAIL_BYTES: Final = 16 << 10
_PARSED_EVENTS: Final = 8  # in search of one with text
_DONE: Final = b"data: [DONE]"
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(?=\{)')
#: Members of a delta that are no text.
_SILENT: Final = frozenset({"role", "name"})


class UsageFilter(AnswerFilter):
    """One exchange's. takes_out: the chunk with the usage is not the client's. status: of the answer, 0: none yet.
    usage: what the upstream has told last; None: nothing. complete: the answer came to its end. failed: it is an error
    and nothing else, whatever its status."""

    __slots__ = ("_after_cr", "_around_bytes", "_json", "_num_bytes", "_num_event_bytes", "_num_events", "_num_parsed",
                 "_num_text_bytes", "_pieces", "_splitter", "complete", "failed", "status", "takes_out",
                 "usage")  # fmt: skip

    def __init__(self) -> None:
        self.takes_out = False
        self.status = 0
        self._begin()

    def _begin(self) -> None:
        self.usage: Usage | None = None
        self.complete = False
        self.failed = False
        self._after_cr = False  # what was taken out ended with one
        self._splitter: EventSplitter | None = None
        self._json = False
        self._pieces = b""  # of JSON: all of it, or its end
        self._num_bytes = 0
        self._num_events = 0  # with text, and their bytes
        self._num_event_bytes = 0
        self._around_bytes = 0  # of such an event, what is not its text; 0: not known yet
        self._num_parsed = 0
        self._num_text_bytes = -1  # of JSON; -1: not known

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
            within = splitter.overflowed
            events = splitter.feed(data)
            if not self.takes_out:
                for event in events:
                    self._look(event)
                return data
            return self._without_usage(events, within)
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
            if self._num_bytes <= PARSED_BYTES:
                self._look_at_all(self._pieces)
            else:
                self.usage = _usage_at_end(self._pieces)
            self._pieces = b""
        return b""

    def _look_at_all(self, data: bytes) -> None:
        """Take note of an answer that is no stream."""
        try:
            document = orjson.loads(data)
        except orjson.JSONDecodeError:
            return
        self.usage = usage_in(document)
        if isinstance(document, dict) and "choices" in document:
            self._num_text_bytes = _text_bytes(document)
        elif isinstance(document, dict):
            self.failed = bool(document.get("error")) and self.usage is None

    @property
    def completion_tokens(self) -> int:
        """About how many tokens the answer has shown so far. Most upstreams send each by itself."""
        if self._splitter is None:
            return -(-(self._num_bytes if self._num_text_bytes < 0 else self._num_text_bytes) // BYTES_PER_TOKEN)
        num_text_bytes = self._num_event_bytes - self._num_events * self._around_bytes
        return max(self._num_events, -(-num_text_bytes // BYTES_PER_TOKEN) if self._around_bytes else 0)

    def _without_usage(self, events: list[bytes], within: bool = False) -> bytes:
        """These events but for the usage. Of a CRLF that was torn apart between two events each half goes with its own.
        within: the first one is a piece of an event that is too long to be read, as the last one may be."""
        kept = []
        last = len(events) - 1 if self._splitter is not None and self._splitter.overflowed else -1
        for index, event in enumerate(events):
            if index == last or (within and index == 0):
                self._look(event)
                kept.append(event)
                continue
            if self._after_cr and event:
                self._after_cr = False
                event = event.removeprefix(b"\n")
            if self._look(event):
                kept.append(event[: event.startswith(b"\n")])
                self._after_cr = event.endswith(b"\r")
            else:
                kept.append(_silenced(event) if _USAGE.search(event) is not None else event)
        return b"".join(kept)

    def _look(self, event: bytes) -> bool:
        """Take note of one event. Whether it says nothing but the usage.

        Events of a stream differ in their text alone, so only those are parsed that may tell of usage, and the first
        ones, up to one with text: what is around it is around all others.
        """
        if _USAGE.search(event) is not None:
            chunk = _parsed(event)
            self.usage = usage_in(chunk) or self.usage
            if is_usage_chunk(chunk):
                return True
        if not self._around_bytes and self._num_parsed < _PARSED_EVENTS:
            self._num_parsed += 1
            num_text_bytes = _text_bytes(_parsed(event))
            if not num_text_bytes:
                return False
            self._around_bytes = max(1, len(event) - num_text_bytes)
        if event and not (event if event[0] > 0x0D else event.lstrip(b"\r\n")).startswith((b":", _DONE)):
            self._num_events += 1
            self._num_event_bytes += len(event)
        return False


def _silenced(event: bytes) -> bytes:
    """A whole event without the usage that it tells beside other things."""
    chunk = _parsed(event)
    if not isinstance(chunk, dict) or not isinstance(chunk.get("usage"), dict):
        return event  # a text that speaks of it, or a piece of an event
    data = event_data(event)
    silenced = with_member(data, "usage", b"null")
    if data in event:
        return event.replace(data, silenced, 1)
    return b"data: " + b"".join(silenced.splitlines()) + b"\n\n"


def _parsed(event: bytes) -> Any:
    try:
        return orjson.loads(event_data(event))
    except orjson.JSONDecodeError:
        return None


def _text_bytes(chunk: Any) -> int:
    """How much of what an answer or one event says is text, or what a model writes in its place."""
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    return sum(map(_bytes_of, choices)) if isinstance(choices, list) else 0


def _bytes_of(choice: Any) -> int:
    if not isinstance(choice, dict):
        return 0
    num_bytes = _size(text) if isinstance(text := choice.get("text"), str) else 0
    for said in (choice.get("delta"), choice.get("message")):
        for name, value in said.items() if isinstance(said, dict) else ():
            if isinstance(value, str):
                num_bytes += _size(value) if name not in _SILENT else 0
            elif value:
                num_bytes += len(orjson.dumps(value))
    return num_bytes


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _usage_at_end(data: bytes) -> Usage | None:
    """Of the end of a long answer that is no stream. No text can pass for it: its quotes are escaped."""
    for found in reversed(list(_USAGE.finditer(data))):
        try:
            told, _ = _DECODER.raw_decode(data[found.end() :].decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        if (usage := usage_in({"usage": told})) is not None:
            return usage
    return None


_DECODER: Final = json.JSONDecoder()
