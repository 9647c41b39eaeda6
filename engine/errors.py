"""Every way in which the engine refuses or fails, in one table: kind -> HTTP status, OpenAI type and code.

An error has a kind, a message that says what happened, to what, and what to do, and where it helps the parameter at
fault and ``retry_after_s``. The wire modules turn it into bytes; nothing here knows HTTP beyond the number.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any


class EngineError(Exception):
    """The engine cannot be started. permanent: starting it again cannot help (a corrupt model, a missing provider)."""

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


class Kind(Enum):
    """status, OpenAI ``type``, OpenAI ``code`` (None: the kind needs none)."""

    INVALID = (400, "invalid_request_error", None)
    INVALID_JSON = (400, "invalid_request_error", "invalid_json")
    UNSUPPORTED_FIELD = (400, "invalid_request_error", "unsupported_parameter")
    FORBIDDEN = (403, "invalid_request_error", "forbidden")
    NOT_FOUND = (404, "invalid_request_error", "unknown_url")
    MODEL_NOT_FOUND = (404, "invalid_request_error", "model_not_found")
    METHOD = (405, "invalid_request_error", "method_not_allowed")
    TIMEOUT = (408, "invalid_request_error", "request_timeout")
    DEADLINE = (408, "invalid_request_error", "deadline_exceeded")  # the client's own: no fault of the engine's health
    TOO_LARGE = (413, "invalid_request_error", "request_too_large")
    MEDIA_TYPE = (415, "invalid_request_error", "unsupported_media_type")
    CONTEXT_LENGTH = (422, "invalid_request_error", "context_length_exceeded")
    FAILED = (500, "server_error", "engine_failed")
    OVERLOADED = (503, "server_error", "queue_full")
    UNAVAILABLE = (503, "server_error", "engine_unavailable")

    def __init__(self, status: int, type_: str, code: str | None) -> None:
        self.status = status
        self.type = type_
        self.code = code


class RequestError(Exception):
    """One request is refused or has failed; the others are not concerned."""

    def __init__(
        self, kind: Kind, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.usage: dict[str, Any] | None = None

    def body(self) -> dict[str, dict[str, Any]]:
        """The OpenAI error object; and what was used, if some of an answer was made, for whoever counts it."""
        kind = self.kind
        error = {"message": self.message, "type": kind.type, "param": self.param, "code": kind.code}
        return {"error": error} if self.usage is None else {"error": error, "usage": self.usage}

    def headers(self) -> dict[str, str]:
        """``Retry-After`` in whole seconds, never 0, where the error says when to come back (RFC 9110 10.2.3)."""
        fields = {"x-should-retry": "false"} if self.kind is Kind.DEADLINE else {}  # OpenAI's clients repeat a 408
        if self.retry_after_s is not None:
            fields["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
            fields["retry-after-ms"] = str(max(1, math.ceil(self.retry_after_s * 1000)))  # as OpenAI's clients read it
        return fields


def invalid(message: str, param: str | None = None) -> RequestError:
    """A 400 for a request that says something wrong; ``param`` names the field."""
    return RequestError(Kind.INVALID, message, param=param)
