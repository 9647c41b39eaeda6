"""What aiohttp's parser objects to, in our words: which limit was passed, or what is malformed, never what was sent."""

from __future__ import annotations

from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from proxy.config import ListenerLimits
from proxy.errors import Kind
from proxy.gate import Refusal


def explain(error: HttpProcessingError, limits: ListenerLimits) -> Refusal:
    """The refusal for a parser's error; ``limits`` are those that the parser was made with."""
    if isinstance(error, LineTooLong):
        if error.args[1] == limits.line:
            return Refusal(Kind.URI_TOO_LONG, f"the request target exceeds {limits.line} bytes")
        return Refusal(Kind.HEADERS_TOO_LARGE, f"a header line exceeds {limits.header} bytes")
    if error.message == "Too many headers received":
        return Refusal(Kind.HEADERS_TOO_LARGE, f"there are more than {limits.num_headers} header fields")
    if error.message == "Received HTTPS traffic on an HTTP port":
        return Refusal(Kind.BAD_REQUEST, "this port speaks plain HTTP; use https on the TLS port")
    # The first line says what, the rest quotes the client.
    first_line = error.message.partition("\n")[0].rstrip(":")
    return Refusal(Kind.BAD_REQUEST, first_line or "the request is malformed")
