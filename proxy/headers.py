"""Which header fields cross the proxy. Pure, and on the path of every request.

The order is the point (RFC 9110 §7.6.1): first the hop-by-hop fields of the message received go, those that its
Connection field names included; only then are our own added, so a client that lists ``X-Forwarded-For`` in Connection
removes its own field, never ours. Framing (Content-Length, Transfer-Encoding) is left out both ways: the transport and
the sink re-make it.
"""

from __future__ import annotations

from collections.abc import Iterable

from proxy.exchange import Exchange, RawHeaders

#: Fields of one hop. Expect is answered here; Upgrade and HTTP2-Settings never tunnel an unasked protocol.
HOP_BY_HOP = frozenset(
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
_NOT_FORWARDED = HOP_BY_HOP | {b"host", b"expect", b"http2-settings"}
#: What names the client to upstreams. From a peer that is not trusted only our own values arrive.
_FORWARDING = frozenset({b"forwarded", b"x-real-ip", b"true-client-ip", b"x-client-ip", b"x-cluster-client-ip"})


def _connection_tokens(headers: RawHeaders) -> set[bytes]:
    return {
        token.strip().lower()
        for name, value in headers
        if len(name) == 10 and name.lower() == b"connection"
        for token in value.split(b",")
    }


def joined(headers: RawHeaders, name: bytes) -> bytes:
    """The values of all lines of the field ``name`` (lower case) as one comma-separated list."""
    return b", ".join([value for key, value in headers if key.lower() == name])


def upstream_request_headers(x: Exchange) -> list[tuple[bytes, bytes]]:
    """The fields to send upstream, Host first, framing left out; ``x.drop`` and ``x.add`` are applied last.

    A name with an underscore counts as the same name with a hyphen when it is dropped: CGI-like servers fold the two.
    """
    out = [(b"Host", x.authority.encode("latin-1"))]
    append = out.append
    unwanted: frozenset[bytes] | set[bytes] = _NOT_FORWARDED
    tokens = _connection_tokens(x.headers)
    if x.drop or tokens:
        unwanted = tokens.union(_NOT_FORWARDED, x.drop)
    trusted = x.trusted
    for field in x.headers:
        name = field[0].lower()
        if name in unwanted:
            continue
        if b"_" in name:
            name = name.replace(b"_", b"-")
            if name in unwanted:
                continue
        if not trusted and (name in _FORWARDING or name.startswith(b"x-forwarded-")):
            continue
        append(field)
    out += x.add
    return out


def response_headers(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The fields of an upstream's answer that go on to the client, in order, repeated ones (Set-Cookie) kept."""
    raw = raw if isinstance(raw, list) else list(raw)
    unwanted: frozenset[bytes] | set[bytes] = HOP_BY_HOP
    tokens = _connection_tokens(raw)
    if tokens:
        unwanted = tokens.union(HOP_BY_HOP)
    return [field for field in raw if field[0].lower() not in unwanted]
