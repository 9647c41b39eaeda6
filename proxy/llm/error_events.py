"""Whether a stream of events says that it failed: what ends well by its framing may have failed by its words. Pure.

A language model's stream that fails after its first content cannot change its status any more, so it says so in an
event, and often ends as if nothing had happened. Whoever judges the answer must hear of it: it was no success. Events
that do not hold the word are not parsed, so an event costs two searches in its bytes.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import orjson

from proxy.llm.events import EventSplitter, event_data
from proxy.llm.first_content import Told, told_by

MAX_EVENT_BYTES: Final = 64 << 10  # a longer one is not looked at
_MARK: Final = b'"error"'


class Fault(Enum):
    """Whose a stream's failure is."""

    FAILED = "its stream said that it failed"
    EMPTY = "its stream ended before any content"
    REFUSED = "its stream said that it takes no more"
    CLIENTS = "its stream said that the request is wrong"


#: Codes and types by which an upstream refuses, as OpenAI, Anthropic, vLLM, TGI and this engine write them.
_REFUSALS: Final = frozenset(
    {"429", "529", "rate_limit_exceeded", "rate_limit_error", "rate_limit", "insufficient_quota", "tokens", "requests",
     "overloaded", "overloaded_error", "engine_overloaded", "queue_full", "capacity_exceeded", "too_many_requests"}
)  # fmt: skip
_OF_CLIENTS: Final = frozenset({"400", "413", "422", "invalid_request_error", "content_filter", "validation"})


class ErrorEvents:
    """One stream's. fault: of the first event that told of one; None: none has."""

    __slots__ = ("_pending", "fault")

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self._pending = b""

    def feed(self, data: bytes) -> None:
        """Look at what has come."""
        if self.fault is not None or (not self._pending and _MARK not in data and data.endswith(b"\n\n")):
            return
        data = self._pending + data
        end = max(data.rfind(b"\n\n") + 2, data.rfind(b"\r\n\r\n") + 4, data.rfind(b"\r\r") + 2)
        if end < 4:  # none of them
            end = 0
        whole, pending = data[:end], data[end:]
        self._pending = pending if len(pending) <= MAX_EVENT_BYTES else b""
        if _MARK in whole:
            self._judge(whole)

    def end(self) -> Fault | None:
        """The stream has ended: what it has told of; the last event may lack its blank line."""
        if self._pending and self.fault is None and _MARK in self._pending:
            self._judge(self._pending + b"\n\n")
        return self.fault

    def _judge(self, events: bytes) -> None:
        for event in EventSplitter(len(events)).feed(events):
            if _MARK in event and (fault := fault_of(event)) is not None:
                self.fault = fault
                return


def fault_of(event: bytes) -> Fault | None:
    """What one whole event tells of; None: no fault."""
    try:
        chunk = orjson.loads(event_data(event))
    except orjson.JSONDecodeError:
        return None
    if not isinstance(chunk, dict):
        return None
    response = chunk.get("response")
    error: Any = chunk.get("error") or (response.get("error") if isinstance(response, dict) else None)
    if chunk.get("type") == "error":  # as OpenAI's Responses say it: the event itself is the error
        error = error or chunk
    elif chunk.get("type") != "response.failed" and told_by(event) is not Told.FAILED:
        return None
    words = {str(error.get(name)) for name in ("code", "type", "status")} if isinstance(error, dict) else set()
    if words & _REFUSALS:
        return Fault.REFUSED
    return Fault.CLIENTS if words & _OF_CLIENTS else Fault.FAILED
