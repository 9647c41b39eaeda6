"""What the HTTP parser lets pass and an edge must not. Pure: facts of one head in, facts or a refusal out.

Owns the second reading of every request head: version, method, target, authority, framing, and the size of the head.
llhttp is strict about syntax but serves RTSP and HTTP/0.9, takes any Host, frames ``gzip, chunked`` and allows
HTTP/1.0 with Transfer-Encoding. Whatever two parsers could read differently is refused here, before routing, so that
what is routed, what policies see and what the upstream receives are one decision.

Decisions: Content-Length with Transfer-Encoding is 400 (RFC 9112 §6.1 allows either); a Content-Length given twice is
400 even if the values agree; the authority of an absolute-form target replaces Host (RFC 9112 §3.2.2).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from proxy.errors import Kind
from proxy.exchange import RawHeaders
from proxy.paths import BadPath, normalise

#: HTTP methods of the IANA registry that an edge may pass on. CONNECT and TRACE are refused, and so is what the parser
#: knows from RTSP and ICE.
_METHOD_NAMES: Final = """
    GET HEAD POST PUT DELETE OPTIONS PATCH QUERY ACL BIND CHECKOUT COPY LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MOVE
    NOTIFY M-SEARCH PROPFIND PROPPATCH PURGE REBIND REPORT SEARCH SUBSCRIBE UNBIND UNLINK UNLOCK UNSUBSCRIBE
"""
_METHODS: Final = frozenset(_METHOD_NAMES.split())
#: The value of Allow where a method is refused whatever it is meant for (RFC 9110 §15.5.6 asks for one).
ALLOW: Final = ", ".join(_METHOD_NAMES.split()).encode()
_READ: Final = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect", b"upgrade"))
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?")
_ABSOLUTE: Final = re.compile(r"https?://([^/?]*)(/[^?]*)?(?:\?(.*))?", re.IGNORECASE | re.DOTALL)
#: Longest DNS name with a port; also bounds what the cache below can hold.
_MAX_AUTHORITY_BYTES: Final = 262


class Refusal(NamedTuple):
    """Why a request is not served: for ``errors.refuse``."""

    kind: Kind
    message: str


class Refused(Exception):
    """Raised by ``check``; carries the Refusal."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(kind, message)


class Facts:
    """What a head says once it was found sound; the names are those of ``Exchange``. upgrade: it asks for a change of
    protocol."""

    __slots__ = ("authority", "content_length", "expects_continue", "has_body", "host", "path", "query", "send_path",
                 "upgrade")  # fmt: skip

    def __init__(
        self,
        host: str,
        authority: str,
        path: str,
        send_path: str,
        query: str,
        content_length: int | None,
        has_body: bool,
        expects_continue: bool,
        upgrade: bool,
    ) -> None:
        self.host = host
        self.authority = authority
        self.path = path
        self.send_path = send_path
        self.query = query
        self.content_length = content_length
        self.has_body = has_body
        self.expects_continue = expects_continue
        self.upgrade = upgrade


def check(
    method: str,
    target: str,
    version: tuple[int, int],
    headers: RawHeaders,
    *,
    max_headers_bytes: int,
    encoded_slash: bool = False,
) -> Facts:
    """The facts of a request head, or Refused with the kind of error and words for the client. encoded_slash: some
    route allows ``%2F`` in a path; whether it is the one of this request is known when it was found."""
    if version != (1, 1) and version != (1, 0):
        raise Refused(Kind.VERSION, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    if method not in _METHODS:
        raise Refused(Kind.METHOD, f"the method {method} is not served")
    if "#" in target or "\\" in target:
        raise Refused(Kind.BAD_REQUEST, "the request target contains a fragment or a backslash")
    host_value: bytes | None = None
    length_value: bytes | None = None
    coding: bytes | None = None
    expect: bytes | None = None
    upgrade = False
    num_bytes = 0
    for name, value in headers:
        num_bytes += len(name) + len(value) + 4
        lowered = name.lower()
        if lowered not in _READ:
            continue
        if lowered == b"host":
            if host_value is not None:
                raise Refused(Kind.BAD_REQUEST, "there is more than one Host field")
            host_value = value
        elif lowered == b"content-length":
            if length_value is not None:
                raise Refused(Kind.BAD_REQUEST, "there is more than one Content-Length field")
            length_value = value
        elif lowered == b"transfer-encoding":
            if coding is not None:
                raise Refused(Kind.BAD_REQUEST, "there is more than one Transfer-Encoding field")
            coding = value
        elif lowered == b"expect":
            expect = value.lower()
        else:
            upgrade = True
    if num_bytes > max_headers_bytes:
        raise Refused(Kind.HEADERS_TOO_LARGE, f"the header fields exceed {max_headers_bytes} bytes in all")
    if expect is not None and expect != b"100-continue":
        raise Refused(Kind.EXPECTATION, "the only expectation met here is 100-continue")
    length = _framing(version, length_value, coding) if length_value is not None or coding is not None else None
    host, authority, path, query = _locate(target, version, host_value)
    try:
        match, send = normalise(path, encoded_slash=encoded_slash)
    except BadPath as error:
        raise Refused(Kind.BAD_PATH, str(error)) from error
    has_body = coding is not None or bool(length)
    expects_continue = expect is not None and version == (1, 1) and has_body
    return Facts(host, authority, match, send, query, length, has_body, expects_continue, upgrade)


def _framing(version: tuple[int, int], length: bytes | None, coding: bytes | None) -> int | None:
    if coding is not None:
        if length is not None:
            raise Refused(Kind.BAD_REQUEST, "Content-Length and Transfer-Encoding contradict each other")
        if version == (1, 0):
            raise Refused(Kind.BAD_REQUEST, "HTTP/1.0 has no Transfer-Encoding")
        if coding.strip(b" \t").lower() != b"chunked":
            raise Refused(Kind.NOT_IMPLEMENTED, "the only transfer coding understood here is chunked")
        return None
    assert length is not None
    if not length.isdigit() or len(length) > 18:
        raise Refused(Kind.BAD_REQUEST, "Content-Length is not a number of bytes")
    return int(length)


def _locate(target: str, version: tuple[int, int], host_value: bytes | None) -> tuple[str, str, str, str]:
    """(host, authority, path, query)."""
    if host_value is None:
        if version == (1, 1):
            raise Refused(Kind.BAD_REQUEST, "HTTP/1.1 needs a Host field")
        host = authority = ""
    else:
        host, authority = _parse_authority(host_value)
    if target.startswith("/"):
        path, _, query = target.partition("?")
        return host, authority, path, query
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise Refused(Kind.BAD_REQUEST, "the request target is neither a path nor an http or https URL")
    host, authority = _parse_authority(absolute[1].encode("latin-1", "replace"))
    return host, authority, absolute[2] or "/", absolute[3] or ""


def _parse_authority(value: bytes) -> tuple[str, str]:
    if len(value) > _MAX_AUTHORITY_BYTES:
        raise Refused(Kind.BAD_REQUEST, "the host name is too long")
    found = _split_authority(value)
    if found is None:
        raise Refused(Kind.BAD_REQUEST, "the host is not a name or address with an optional port")
    return found


@lru_cache(maxsize=1024)
def _split_authority(value: bytes) -> tuple[str, str] | None:
    text = value.decode("latin-1")
    found = _HOST.fullmatch(text)
    if found is None or (found[2] and int(found[2]) > 65535):
        return None
    host = found[1].lower().removesuffix(".")
    return (host, text) if host.strip(".") else None
