"""Which header fields cross the proxy. Pure, and on the path of every request.

The order is the point (RFC 9110 §7.6.1): first the hop-by-hop fields of the message received go, those that its
Connection field names included; only then are our own added, so a client that lists ``X-Forwarded-For`` in Connection
removes its own field, never ours. Framing (Content-Length, Transfer-Encoding) is left out both ways: the transport and
the sink re-make it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from proxy.exchange import Exchange, RawHeaders

#: Fields of one hop, and framing.
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
    }
)
#: Host is re-made, Expect is answered here, and no unasked protocol is tunnelled.
_NOT_FORWARDED: Final = HOP_BY_HOP | {b"host", b"expect", b"http2-settings"}
#: What names the client to upstreams, besides X-Forwarded-*, and how often its request was tried. From a peer that is
#: not trusted only our own arrives.
_FORWARDING: Final = frozenset(
    {b"forwarded", b"x-real-ip", b"true-client-ip", b"x-client-ip", b"x-cluster-client-ip", b"x-envoy-attempt-count"}
)
#: Values of Connection that name no field that is not of one hop anyway.
_PLAIN_CONNECTION: Final = frozenset({b"keep-alive", b"close", b"Keep-Alive", b"Close"})

# Classes of fields; whatever needs no second look is 0.
_END_TO_END: Final = 0
_HOP: Final = 1
_CONNECTION: Final = 2
_FORWARDS: Final = 3
_DATE: Final = 4
_LENGTH: Final = 5
_CODING: Final = 6

_MAX_NAMES: Final = 2048
_MAX_NAME_BYTES: Final = 64


def _judge_request(name: bytes) -> tuple[bytes, int]:
    """(lower-case name with hyphens for underscores, class): CGI-like servers fold the two, so they count as one."""
    name = name.lower().replace(b"_", b"-")
    if name == b"connection":
        return name, _CONNECTION
    if name in _NOT_FORWARDED:
        return name, _HOP
    if name in _FORWARDING or name.startswith(b"x-forwarded-"):
        return name, _FORWARDS
    return name, _END_TO_END


def _judge_response(name: bytes) -> int:
    name = name.lower()
    classes = {b"date": _DATE, b"content-length": _LENGTH, b"transfer-encoding": _CODING, b"connection": _CONNECTION}
    return classes.get(name, _HOP if name in HOP_BY_HOP else _END_TO_END)


# What was found about names of fields, by their exact spelling. Names are chosen by those who send them: only short
# ones are remembered, and when there are too many all are forgotten, so that the memory stays small and the usual ones
# are soon back.
_request_names: Final[dict[bytes, tuple[bytes, int]]] = {}
_response_names: Final[dict[bytes, int]] = {}


def _learn_request(name: bytes) -> tuple[bytes, int]:
    found = _judge_request(name)
    if len(name) <= _MAX_NAME_BYTES:
        if len(_request_names) >= _MAX_NAMES:
            _request_names.clear()
        _request_names[name] = found
    return found


def _learn_response(name: bytes) -> int:
    kind = _judge_response(name)
    if len(name) <= _MAX_NAME_BYTES:
        if len(_response_names) >= _MAX_NAMES:
            _response_names.clear()
        _response_names[name] = kind
    return kind


def _tokens(values: Iterable[bytes]) -> set[bytes]:
    return {token.strip().lower() for value in values for token in value.split(b",")}


def joined(headers: RawHeaders, name: bytes) -> bytes:
    """The values of all lines of the field ``name`` (lower case) as one comma-separated list."""
    return b", ".join([value for key, value in headers if key.lower() == name])


def upstream_request_headers(x: Exchange) -> list[tuple[bytes, bytes]]:
    """The fields to send upstream, Host first, framing left out; ``x.drop`` and ``x.add`` are applied last."""
    out = [(b"Host", x.authority.encode("latin-1"))]
    drop = x.drop
    connection: list[bytes] = []
    for field in x.headers:
        found = _request_names.get(field[0])
        name, kind = found if found is not None else _learn_request(field[0])
        if kind:
            if kind == _CONNECTION:
                connection.append(field[1])
            if kind != _FORWARDS or not x.trusted:
                continue
        if name not in drop:
            out.append(field)
    if connection:
        named = _tokens(connection)
        out[1:] = [field for field in out[1:] if _judge_request(field[0])[0] not in named]
    out += x.add
    return out


class ResponseHeaders:
    """kept: what goes on to the client, in order, repeated fields (Set-Cookie) kept. length, coding: the values of
    Content-Length and Transfer-Encoding, comma-separated if there are several. dated: there is a Date."""

    __slots__ = ("coding", "dated", "kept", "length")

    def __init__(
        self, kept: list[tuple[bytes, bytes]], length: bytes | None, coding: bytes | None, dated: bool
    ) -> None:
        self.kept = kept
        self.length = length
        self.coding = coding
        self.dated = dated


def read_response_headers(raw: RawHeaders) -> ResponseHeaders:
    """The fields of an upstream's answer, in one pass: those for the client, and what the others say."""
    kept: list[tuple[bytes, bytes]] = []
    named: set[bytes] | None = None
    length: bytes | None = None
    coding: bytes | None = None
    dated = False
    for field in raw:
        found = _response_names.get(field[0])
        kind = found if found is not None else _learn_response(field[0])
        if kind == _END_TO_END:
            kept.append(field)
        elif kind == _DATE:
            kept.append(field)
            dated = True
        elif kind == _LENGTH:
            length = field[1] if length is None else length + b"," + field[1]
        elif kind == _CODING:
            coding = field[1] if coding is None else coding + b"," + field[1]
        elif kind == _CONNECTION and field[1] not in _PLAIN_CONNECTION:
            tokens = _tokens((field[1],))
            named = tokens if named is None else named | tokens
    if named is not None:
        kept = [field for field in kept if field[0].lower() not in named]
    return ResponseHeaders(kept, length, coding, dated)


def join_head(parts: list[bytes], fields: Iterable[tuple[bytes, bytes]]) -> None:
    """Append the lines of header fields to the pieces of a head."""
    for name, value in fields:
        parts.append(name)
        parts.append(b": ")
        parts.append(value)
        parts.append(b"\r\n")
