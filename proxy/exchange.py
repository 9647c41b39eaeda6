"""One request's facts, and how it ended: what policies, routing and forwarding know of each other.

Owns no behaviour. An Exchange is filled from the top down: the front sets what the client sent, the router the route,
the policies the identity, forwarding the times. ``now`` is monotonic seconds everywhere; ``wall_at`` is the wall clock
at ``started_at``, for the few fields that carry dates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from proxy.route import Route

RawHeaders = Sequence[tuple[bytes, bytes]]


@dataclass(slots=True)
class Head:
    """The head of an answer, on its way to the client. Framing fields are the sink's: it re-makes them.

    headers: names and values as bytes, as they will be sent, no CR, LF or NUL; hop-by-hop fields are gone already.
    content_length: bytes of the body if known; None means chunked (or close-delimited to an HTTP/1.0 client).
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    content_length: int | None = None
    reason: bytes = b""

    def get(self, name: bytes) -> bytes | None:
        """The first value of the field ``name`` (lower case), or None."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return None


@dataclass(slots=True, frozen=True)
class Reply:
    """An answer made here, body included. ``proxy.errors.refuse`` makes refusals: it knows the route's shape."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    close: bool = False  # close the client's connection after it


class Ending(Enum):
    """How an exchange ended. The access log and the metrics print the value."""

    COMPLETE = "complete"  # every byte of the upstream's or our own answer was sent
    REFUSED = "refused"  # a policy answered
    UPSTREAM_FAILED = "upstream_failed"  # nothing was sent: 502, 503, 504
    UPSTREAM_ABORTED = "upstream_aborted"  # it broke off after the head was sent
    CLIENT_GONE = "client_gone"  # the client left first; logged as 499
    CLIENT_ERROR = "client_error"  # its request broke off, was malformed or too slow
    INTERNAL = "internal"  # a fault of ours


class Outcome(NamedTuple):
    """What settle is told. status: as sent (or 499, or what would have been sent)."""

    ending: Ending
    status: int
    reason: str = ""  # one short phrase for the log: "connect refused", "body idle 60s"


@dataclass(slots=True)
class Exchange:
    """One request, from its head to its end."""

    method: str
    target: str  # the request target as received
    version: tuple[int, int]
    scheme: str  # "http" or "https", of this hop
    host: str  # authority that decides routing, lower case, without port; "" for HTTP/1.0 without Host
    authority: str  # as sent, with port
    path: str  # for matching: dot segments removed, // and unreserved escapes folded
    send_path: str  # for the upstream: dot segments removed, otherwise byte-identical
    query: str  # raw, without "?"
    headers: RawHeaders
    fields: Mapping[str, str]  # case-insensitive view of the same headers
    peer: str  # address of the socket's other end ("" on a unix socket)
    content_length: int | None  # of the request body; None: chunked or no body
    has_body: bool
    started_at: float
    wall_at: float = 0.0
    #: Facts that policies establish.
    client: str = ""  # address of the client: peer, or the first untrusted hop behind trusted proxies
    trusted: bool = False  # the peer is a trusted proxy
    request_id: str = ""
    traceparent: str = ""
    key_id: str | None = None  # the API key's id, never the key
    route: Route | None = None
    upstream: str = ""  # name of the upstream that answered, and the server
    server: str = ""
    attempts: int = 0
    #: Times, monotonic seconds; 0.0: not reached.
    routed_at: float = 0.0
    admitted_at: float = 0.0
    connected_at: float = 0.0
    first_byte_at: float = 0.0
    bytes_in: int = 0  # request body taken from the client
    bytes_out: int = 0  # response body given to the client
    body_limit_bytes: int | None = None  # the pump stops a body of unknown length here and answers 413
    #: The chain's own book: how many policies were asked, and whether they were settled.
    asked: int = 0
    settled: bool = False
    #: Header changes for the upstream request: names (lower case) dropped, fields added after the hop-by-hop rules.
    drop: set[bytes] = field(default_factory=set)
    add: list[tuple[bytes, bytes]] = field(default_factory=list)
    #: A policy's own facts between admit and settle, by the policy's name.
    scratch: dict[str, Any] = field(default_factory=dict)
