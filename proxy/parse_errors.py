"""What the request parser objects to, in our words: which limit was passed, or what is malformed, never what was sent.

Pure. The messages told apart here are aiohttp's; tests/proxy/test_downstream_contract.py holds them.
"""

from __future__ import annotations

from proxy.config import ListenerLimits
from proxy.errors import Kind
from proxy.gate import Refusal


def explain(message: str, passed_bytes: object, limits: ListenerLimits) -> Refusal:
    """The refusal for a parser's error. passed_bytes: the limit of one line that was passed, if the parser says one."""
    if passed_bytes is not None:
        if passed_bytes == limits.line:
            return Refusal(Kind.URI_TOO_LONG, f"the request target exceeds {limits.line} bytes")
        return Refusal(Kind.HEADERS_TOO_LARGE, f"a header line exceeds {limits.header} bytes")
    if message == "Too many headers received":
        return Refusal(Kind.HEADERS_TOO_LARGE, f"there are more than {limits.num_headers} header fields")
    if message == "Received HTTPS traffic on an HTTP port":
        return Refusal(Kind.BAD_REQUEST, "this port speaks plain HTTP; use https on the TLS port")
    if message.startswith("Pause on PRI"):  # RFC 9113 §3.4
        return Refusal(Kind.VERSION, "HTTP/2 is not spoken here")
    if message.startswith("Bad status line"):
        return Refusal(Kind.BAD_REQUEST, "the request line is not METHOD, TARGET and HTTP version")
    # The first line says what, the rest quotes the client.
    return Refusal(Kind.BAD_REQUEST, message.partition("\n")[0].rstrip(":") or "the request is malformed")
