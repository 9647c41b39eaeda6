"""Every refusal and failure in one table: kind -> status, OpenAI type and code; and one function that words it.

An error has a kind, a message that says what happened, to what, and what to do, and where it helps a ``retry_after_s``.
The route's ``api`` decides the shape of the body: OpenAI, Open Inference Protocol, or by Accept RFC 9457 problem+json,
HTML or text. Messages never echo what the client sent; whatever they carry is escaped all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum
from html import escape
from typing import NamedTuple

import orjson

from proxy.exchange import Exchange, Reply
from proxy.units import spell_size

MAX_CLIENT_WAIT_S = 60.0  # the longest Retry-After that OpenAI's clients obey
_REGISTRY = "https://iana.org/assignments/http-problem-types#"
_INVALID, _LIMIT, _SERVER = "invalid_request_error", "rate_limit_error", "server_error"


class Row(NamedTuple):
    """What a kind of error looks like from outside."""

    status: int
    type: str  # of the OpenAI error
    code: str  # of the OpenAI error; also the member ``code`` of a problem
    title: str
    problem: str = "about:blank"  # RFC 9457 type


class Kind(Enum):
    """What went wrong. Whose fault it is follows from the status: 4xx the client's, 5xx ours or the upstream's."""

    BAD_REQUEST = Row(400, _INVALID, "bad_request", "Bad Request")
    BAD_PATH = Row(400, _INVALID, "bad_path", "Bad Path")
    UNAUTHORIZED = Row(401, _INVALID, "invalid_api_key", "Unauthorized")
    FORBIDDEN = Row(403, _INVALID, "access_denied", "Forbidden")
    NOT_FOUND = Row(404, _INVALID, "route_not_found", "Not Found")
    METHOD = Row(405, _INVALID, "method_not_allowed", "Method Not Allowed")
    REQUEST_TIMEOUT = Row(408, _INVALID, "request_timeout", "Request Timeout")
    DEADLINE = Row(408, _INVALID, "deadline_exceeded", "Request Timeout")
    CONFLICT = Row(409, _INVALID, "conflict", "Conflict")
    LENGTH_REQUIRED = Row(411, _INVALID, "length_required", "Length Required")
    TOO_LARGE = Row(413, _INVALID, "request_too_large", "Content Too Large")
    URI_TOO_LONG = Row(414, _INVALID, "uri_too_long", "URI Too Long")
    MEDIA_TYPE = Row(415, _INVALID, "unsupported_media_type", "Unsupported Media Type")
    EXPECTATION = Row(417, _INVALID, "expectation_failed", "Expectation Failed")
    CONTEXT_LENGTH_400 = Row(400, _INVALID, "context_length_exceeded", "Bad Request")
    CONTEXT_LENGTH = Row(422, _INVALID, "context_length_exceeded", "Unprocessable Content")
    MODEL_NOT_FOUND = Row(404, _INVALID, "model_not_found", "Not Found")
    MISDIRECTED = Row(421, _INVALID, "misdirected_request", "Misdirected Request")
    KEY_REUSED = Row(422, _INVALID, "idempotency_key_reused", "Unprocessable Content")
    HEADERS_TOO_LARGE = Row(431, _INVALID, "headers_too_large", "Request Header Fields Too Large")
    RATE_LIMITED = Row(429, _LIMIT, "rate_limit_exceeded", "Too Many Requests", _REGISTRY + "quota-exceeded")
    QUOTA = Row(429, "insufficient_quota", "insufficient_quota", "Too Many Requests", _REGISTRY + "quota-exceeded")
    IN_FLIGHT = Row(429, _LIMIT, "concurrency_limit_exceeded", "Too Many Requests", _REGISTRY + "quota-exceeded")
    INTERNAL = Row(500, _SERVER, "internal_error", "Internal Server Error")
    NOT_IMPLEMENTED = Row(501, _INVALID, "not_implemented", "Not Implemented")
    UPSTREAM_CONNECT = Row(502, _SERVER, "upstream_unreachable", "Bad Gateway")
    UPSTREAM_KEY = Row(502, _SERVER, "upstream_key_refused", "Bad Gateway")
    UPSTREAM_PROTOCOL = Row(502, _SERVER, "upstream_protocol_error", "Bad Gateway")
    UPSTREAM_ABORTED = Row(502, _SERVER, "upstream_aborted", "Bad Gateway")
    CAPACITY = Row(503, _SERVER, "capacity_exceeded", "Service Unavailable", _REGISTRY + "temporary-reduced-capacity")
    BREAKER_OPEN = Row(503, _SERVER, "breaker_open", "Service Unavailable", _REGISTRY + "temporary-reduced-capacity")
    ENGINE_DOWN = Row(
        503, _SERVER, "engine_unavailable", "Service Unavailable", _REGISTRY + "temporary-reduced-capacity"
    )
    DRAINING = Row(503, _SERVER, "shutting_down", "Service Unavailable", _REGISTRY + "temporary-reduced-capacity")
    UPSTREAM_TIMEOUT = Row(504, _SERVER, "upstream_timeout", "Gateway Timeout")
    VERSION = Row(505, _INVALID, "http_version_not_supported", "HTTP Version Not Supported")

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.value.status


def retry_after(seconds: float) -> int:
    """Whole seconds that are never too early: the ceiling, at least 1 (RFC 9110 §10.2.3)."""
    return max(1, math.ceil(seconds - 1e-9))


def refuse(
    x: Exchange | None,
    kind: Kind,
    message: str,
    *,
    api: str | None = None,
    retry_after_s: float | None = None,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    violated: tuple[str, ...] = (),
    param: str | None = None,
    code: str | None = None,
    close: bool = False,
    should_retry: bool | None = None,
) -> Reply:
    """The Reply for an error, in the shape of ``api`` (by default the route's; "none" before a route is known).

    should_retry: whether the same request may succeed later, where OpenAI's clients would judge otherwise; None: they
    judge rightly. violated: names of the limits that refused, for ``violated-policies`` of a problem. param
    and code: of the OpenAI error, where the table's code is too general.
    """
    if api is None:
        api = api_of(x)
    message = message.encode("utf-8", "replace").decode()
    media_type, body = _body(x, kind, message, api, violated, param, code or kind.value.code)
    fields = [(b"Content-Type", media_type), (b"Cache-Control", b"no-store"), (b"X-Content-Type-Options", b"nosniff")]
    if retry_after_s is not None:
        fields.append((b"Retry-After", b"%d" % retry_after(retry_after_s)))
    if api == "openai":
        fields += _retry_hints(retry_after_s, should_retry)
    return Reply(kind.status, (*fields, *headers), body, close)


def too_large(x: Exchange, limit_bytes: int) -> Reply:
    """The 413, also for the pump that met the limit in mid-body. Closes: the rest of the body is not wanted."""
    message = f"The request body is larger than the {spell_size(limit_bytes)} that this route takes. Send less at once."
    return refuse(x, Kind.TOO_LARGE, message, close=True)


def _retry_hints(retry_after_s: float | None, should_retry: bool | None) -> Iterator[tuple[bytes, bytes]]:
    """What OpenAI's clients read beside Retry-After. Told to wait for more than a minute they ask again at once
    instead, in vain."""
    if retry_after_s is not None and retry_after_s <= MAX_CLIENT_WAIT_S:
        yield b"retry-after-ms", b"%d" % max(1, math.ceil(retry_after_s * 1000 - 1e-6))
    elif retry_after_s is not None and should_retry is None:
        should_retry = False
    if should_retry is not None:
        yield b"x-should-retry", b"true" if should_retry else b"false"


def api_of(x: Exchange | None) -> str:
    """The shape of errors for this request: its route's; the engine has two, by the path."""
    if x is None or x.route is None:
        return "none"
    if x.route.api == "engine":
        return "oip" if x.path == "/v2" or x.path.startswith("/v2/") else "openai"
    return x.route.api


def _body(
    x: Exchange | None, kind: Kind, message: str, api: str, violated: tuple[str, ...], param: str | None, code: str
) -> tuple[bytes, bytes]:
    row: Row = kind.value
    if api == "openai":
        error = {"message": message, "type": row.type, "param": param, "code": code}
        return b"application/json", orjson.dumps({"error": error})
    if api == "oip":
        return b"application/json", orjson.dumps({"error": message})
    media_type = preferred(x.fields.get("Accept", "") if x is not None else "")
    if media_type == "text/html":
        title = f"{row.status} {row.title}"
        page = f"<!doctype html>\n<title>{title}</title>\n<h1>{title}</h1>\n<p>{escape(message)}</p>\n"
        return b"text/html; charset=utf-8", page.encode()
    if media_type == "text/plain":
        return b"text/plain; charset=utf-8", f"{row.status} {row.title}: {message}\n".encode()
    problem = {"type": row.problem, "title": row.title, "status": row.status, "detail": message, "code": code}
    if violated:
        problem["violated-policies"] = violated
    return media_type.encode(), orjson.dumps(problem)


#: What a refusal can be served as, in our order of preference.
_OFFERS = ("application/problem+json", "application/json", "text/html", "text/plain")


def preferred(accept: str) -> str:
    """The offered media type that ``accept`` likes best (RFC 9110 §12.5.1); problem+json when it says nothing."""
    best, best_rank = _OFFERS[0], (0.0, 0)
    for part in accept[:1000].split(","):
        media_range, _, parameters = part.lower().partition(";")
        media_range = media_range.strip()
        for offer in _OFFERS:
            ranges = ("*/*", f"{offer.partition('/')[0]}/*", offer)  # from vague to exact: exact wins at equal weight
            if media_range in ranges:
                rank = (_quality(parameters), ranges.index(media_range))
                if rank[0] > 0 and rank > best_rank:
                    best, best_rank = offer, rank
    return best


def _quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.strip().partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
