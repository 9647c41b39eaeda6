"""The head of a request as its upstream receives it: what of the client's goes on, what is ours, and framing."""

from __future__ import annotations

from proxy.exchange import Exchange
from proxy.headers import join_head, upstream_request_headers
from proxy.rewrite import request_target
from proxy.upstream.attempts import ATTEMPT, attempt_field
from proxy.upstream.upstream import Upstream


def request_head(
    x: Exchange, upstream: Upstream, authorization: bytes | None = None, *, may_switch: bool = False
) -> bytes:
    """The head of the request as the upstream receives it; framing is made here. authorization: ours, instead of the
    client's. may_switch: it asks for WebSocket."""
    if authorization is not None:
        x.drop.add(b"authorization")
    if upstream.is_local:
        x.drop.add(b"headrace-key")
    if x.attempts > 1:
        x.drop.add(ATTEMPT)
    parts = [f"{x.method} {request_target(x)} HTTP/1.1\r\n".encode("latin-1")]
    join_head(parts, upstream_request_headers(x))
    if authorization is not None:
        parts.append(b"Authorization: %b\r\n" % authorization)
    if upstream.is_local and x.key_id is not None:
        # The engine shares itself out between keys, so only the edge may say whose a request is.
        parts.append(f"Headrace-Key: {x.key_id}\r\n".encode("latin-1"))
    if x.attempts > 1:
        parts.append(b"%b: %b\r\n" % attempt_field(x))
    if x.deadline is not None:
        parts.append(x.deadline.fields(x.connected_at))
    if x.content_length is not None:
        parts.append(b"Content-Length: %d\r\n" % x.content_length)
    elif x.has_body:
        parts.append(b"Transfer-Encoding: chunked\r\n")
    parts.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" if may_switch else b"\r\n")
    return b"".join(parts)
