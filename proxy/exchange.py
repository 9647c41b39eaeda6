"""One request's facts, and how it ended: what policies, routing and forwarding know of each other.

Owns no behaviour. An Exchange is filled from the top down: the front sets what the client sent, the router the route,
the policies the identity, forwarding the times. ``now`` is monotonic seconds everywhere; ``wall_at`` is the wall clock
at ``started_at``, for the few fields that carry dates.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxy.answer_filter import AnswerFilter
    from proxy.deadline import Deadline
    from proxy.held_body import HeldBody
    from proxy.keys import KeyEntry
    from proxy.model_routes import Target
    from proxy.own_request import OwnAnswer
    from proxy.route import Route

RawHeaders = Sequence[tuple[bytes, bytes]]


class Head:
    """The head of an answer, on its way to the client. Framing fields are the sink's: it re-makes them.

    headers: names and values as bytes, as they will be sent, no CR, LF or NUL; hop-by-hop fields are gone already.
    content_length: bytes of the body if known; None means chunked (or close-delimited to an HTTP/1.0 client).
    """

    __slots__ = ("content_length", "headers", "status")

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], content_length: int | None = None) -> None:
        self.status = status
        self.headers = headers
        self.content_length = content_length

    def get(self, name: bytes) -> bytes | None:
        """The first value of the field ``name`` (lower case), or None."""
        size = len(name)
        for key, value in self.headers:
            if len(key) == size and key.lower() == name:
                return value
        return None


@dataclass(slots=True, frozen=True)
class Reply:
    """An answer made here, body included. ``proxy.errors.refuse`` makes refusals: it knows the route's shape."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    close: bool = False  # close the client's connection after it
    is_answer: bool = False  # the request's own, and no refusal


class Ending(StrEnum):
    """How an exchange ended. The access log and the metrics print the value."""

    COMPLETE = "complete"  # every byte of the upstream's or our own answer was sent
    REFUSED = "refused"  # a policy answered
    UPSTREAM_FAILED = "upstream_failed"  # nothing was sent: 502, 503, 504
    UPSTREAM_ABORTED = "upstream_aborted"  # it broke off after the head was sent
    UPSTREAM_ERROR = "upstream_error"  # every byte was sent, and they say that it failed: an event in its stream
    CLIENT_GONE = "client_gone"  # the client left first; logged as 499
    CLIENT_ERROR = "client_error"  # its request broke off, was malformed or too slow
    INTERNAL = "internal"  # a fault of ours


class Outcome:
    """What settle is told. status: as sent (or 499, or what would have been sent). reason: one short phrase for the
    log: "connect refused", "body idle 60s"."""

    __slots__ = ("ending", "reason", "status")

    def __init__(self, ending: Ending, status: int, reason: str = "") -> None:
        self.ending = ending
        self.status = status
        self.reason = reason


class Exchange:
    """One request, from its head to its end. Written out, because a dataclass's own ``__init__`` costs twice as much
    with so many fields."""

    __slots__ = (
        "add", "admitted_at", "ask", "asked", "attempts", "authority", "body", "body_limit_bytes", "bytes_in",
        "bytes_out", "client", "connected_at", "content_length", "deadline", "drop", "fields", "filters",
        "first_byte_at", "first_token_at", "has_body", "headers",
        "host", "key", "key_id", "last_byte_at", "method", "path", "peer", "query", "request_id", "route", "routed_at",
        "scheme", "scratch", "send_path", "served_by", "server", "settled", "sni", "started_at", "target",
        "targets", "traceparent", "trusted",
        "upstream", "version", "wall_at",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        target: str,
        version: tuple[int, int],
        scheme: str,
        host: str,
        authority: str,
        path: str,
        send_path: str,
        query: str,
        headers: RawHeaders,
        fields: Mapping[str, str],
        peer: str,
        content_length: int | None,
        has_body: bool,
        started_at: float,
        wall_at: float = 0.0,
        client: str = "",
    ) -> None:
        self.method = method
        self.target = target  # the request target as received
        self.version = version
        self.scheme = scheme  # "http" or "https", of this hop
        self.host = host  # authority that decides routing, lower case, without port; "" for HTTP/1.0 without Host
        self.authority = authority  # as sent, with port
        self.path = path  # for matching: dot segments removed, // and unreserved escapes folded
        self.send_path = send_path  # for the upstream: dot segments removed, otherwise byte-identical
        self.query = query  # raw, without "?"
        self.headers = headers
        self.fields = fields  # case-insensitive view of the same headers
        self.peer = peer  # address of the socket's other end ("" on a unix socket)
        # Of the request body; None: chunked or no body. Once a policy has read it: of what is sent upstream.
        self.content_length = content_length
        self.has_body = has_body
        self.started_at = started_at
        self.wall_at = wall_at
        # Facts that policies establish.
        self.client = client  # address of the client: peer, or the first untrusted hop behind trusted proxies
        self.trusted = False  # the peer is a trusted proxy
        self.request_id = ""
        self.traceparent = ""
        self.key_id: str | None = None  # the API key's id, never the key; or the name of a user
        self.key: KeyEntry | None = None  # what the keys file says of that key
        self.route: Route | None = None
        self.upstream = ""  # name of the upstream that answered, and the server
        self.server = ""
        self.attempts = 0
        # Times, monotonic seconds; 0.0: not reached.
        self.routed_at = 0.0
        self.admitted_at = 0.0
        self.connected_at = 0.0
        self.first_byte_at = 0.0
        self.first_token_at = 0.0  # of a language model's streamed answer
        self.last_byte_at = 0.0  # of an answer that filters see
        self.bytes_in = 0  # request body taken from the client
        self.bytes_out = 0  # response body given to the client
        self.body_limit_bytes: int | None = None  # the pump stops a body of unknown length here and answers 413
        # The chain's own book: how many policies were asked, and whether they were settled.
        self.asked = 0
        self.settled = False
        # Header changes for the upstream request: names (lower case) dropped, fields added after the hop-by-hop rules.
        self.drop: set[bytes] = set()
        self.add: list[tuple[bytes, bytes]] = []
        # The body, on a route with policies that read it; and what its answer goes through (``answer_filter``).
        self.body: HeldBody | None = None
        self.filters: list[AnswerFilter] | None = None
        # Sends a request of ours to where this one goes, with a body and what that is as JSON, and tells when it was
        # sent in vain; None: nobody can now.
        self.ask: Callable[[bytes, dict[str, Any], Callable[[], None]], Awaitable[OwnAnswer]] | None = None
        # On a route by models: the upstreams that may be asked, in this order, and the one that was asked last.
        self.targets: tuple[Target, ...] | None = None
        self.served_by: Target | None = None
        # Until when the answer is of use; None: as long as it takes.
        self.deadline: Deadline | None = None
        # The name that the client asked for in its TLS handshake; None: none, or no TLS.
        self.sni: str | None = None
        # A policy's own facts between admit and settle, by the policy's name.
        self.scratch: dict[str, Any] = {}
