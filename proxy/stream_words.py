"""Words of ours in a stream of events: a comment while it is quiet, a last event where no other will come. Pure.

Owns where they may stand: between two events, a last one also behind a piece of one, and nothing behind the end of a
language model's stream (OpenAI's ``[DONE]``). What is put there is counted as sent, like any other byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from proxy.errors import Kind

if TYPE_CHECKING:
    from proxy.exchange import Reply

_TAIL_BYTES: Final = 10  # holds "[DONE]" and the end of its event
#: Two line ends running, each of which is CR, LF or CRLF.
_EVENT_ENDS: Final = (b"\n\n", b"\r\r", b"\n\r\n", b"\r\r\n")
_PING: Final = b": ping\n\n"
_ENGINE_LOST: Final = (
    "The engine stopped in the middle of this answer. What was received is incomplete; send the request again."
)


class StreamWords:
    """One answer's. ours: it is our engine's, whose clients are told if it breaks off. of_model: it is a language
    model's, whose clients know events that tell of errors. ping_s: how quiet it may be; None: it may."""

    __slots__ = ("_of_model", "_ours", "_ping_s", "_pinged_at", "_tail")

    def __init__(self, *, ours: bool, of_model: bool, ping_s: float | None) -> None:
        self._ours = ours
        self._of_model = of_model
        self._ping_s = ping_s
        self._pinged_at = 0.0
        self._tail = b"\n\n"  # the last bytes that the client has

    def passed(self, data: bytes) -> None:
        """This went to the client."""
        self._tail = data[-_TAIL_BYTES:] if len(data) >= _TAIL_BYTES else (self._tail + data)[-_TAIL_BYTES:]

    def ping(self, now: float, heard_at: float) -> bytes:
        """What is to be said now so that nobody on the way takes the stream for dead, or nothing. heard_at: when the
        upstream was heard last."""
        ping_s = self._ping_s
        if ping_s is None or now - max(heard_at, self._pinged_at) < ping_s:
            return b""
        if not self._tail.endswith(_EVENT_ENDS) or b"[DONE]" in self._tail:
            return b""
        self._pinged_at = now
        return _PING

    def refused(self, reply: Reply) -> bytes:
        """A last event that says the same as ``reply``, for a language model's stream that has begun; else nothing."""
        return self._last_event(reply.body) if self._of_model and b"[DONE]" not in self._tail else b""

    def broken_off(self) -> bytes:
        """A last event for an answer of our engine that breaks off; else nothing."""
        if not self._ours:
            return b""
        row = Kind.ENGINE_DOWN.value
        error = {"message": _ENGINE_LOST, "type": row.type, "param": None, "code": row.code}
        return self._last_event(orjson.dumps({"error": error}))

    def _last_event(self, error: bytes) -> bytes:
        """Behind whatever the client has. error: what it says, as JSON."""
        blank = b""
        if not self._tail.endswith(_EVENT_ENDS):
            blank = b"\n" if self._tail.endswith(b"\n") else b"\n\n"
        return blank + b"data: " + error + b"\n\n"
