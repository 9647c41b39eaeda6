"""What an upstream receives of a request with a heavy head."""

from __future__ import annotations

from typing import Any

from tests.wire.harness import OK, answering, app, edge, raw_upstream


async def received(trim: dict[str, Any], *fields: bytes, body: bytes = b"") -> bytes:
    """The request as the upstream received it, without what the proxy adds."""
    async with raw_upstream(answering(OK)) as upstream:
        config = {**app(upstream.port), "routes": [{"to": "app", "policies": {"trim": trim}}]}
        async with edge(config) as running:
            raw = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(body)
            raw += b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body
            assert (await running.ask(raw)).status == 200
        lines = upstream.received.split(b"\r\n")
        ours = (b"X-Request-Id", b"traceparent", b"X-Forwarded-", b"Host", b"Content-Length")
        return b"\r\n".join(line for line in lines[1:] if not line.startswith(ours))


async def test_cookies_end_at_the_edge_and_the_others_arrive_byte_by_byte() -> None:
    heavy = b"; ".join(b"_ga_%d=%s" % (i, b"x" * 60) for i in range(100))
    cookie = b"Cookie: session=a=b%3D; " + heavy + b';theme="dark" ;  lang=\xe4'
    trim = {"cookies": {"drop": ["_ga*"]}}
    assert await received(trim, cookie) == b'Cookie: session=a=b%3D;theme="dark" ;  lang=\xe4\r\n\r\n'
    assert await received(trim, b"Cookie: _ga_1=1", b"Cookie: a=1") == b"Cookie: a=1\r\n\r\n"
    assert await received({"cookies": {"allow": ["session"]}}, cookie) == b"Cookie: session=a=b%3D\r\n\r\n"


async def test_B01_cookies_that_connection_lists_are_gone_whatever_is_trimmed() -> None:
    trim = {"cookies": {"drop": ["b"]}}
    assert await received(trim, b"Cookie: a=1; b=2", b"Connection: Cookie") == b"\r\n"


async def test_an_allow_list_lets_nothing_else_pass_and_leaves_the_body_its_type() -> None:
    trim = {"headers": {"allow": ["Accept"], "tracing": ["b3"]}}
    fields = (b"Accept: a", b"X-B3-TraceId: 1", b"X_Internal: 1", b"Content-Type: text/plain", b"User-Agent: u")
    assert await received(trim, *fields, body=b"body") == b"Accept: a\r\nContent-Type: text/plain\r\n\r\nbody"


async def test_internals_of_tracing_end_at_the_edge() -> None:
    trim = {"headers": {"drop": ["X-Internal-*"], "tracing": ["b3", "datadog", "aws"]}}
    fields = (
        b"b3: 0",
        b"x-b3-sampled: 1",
        b"X-Datadog-Tags: t",
        b"X-Amzn-Trace-Id: r",
        b"x_internal_user: me",
        b"Accept: a",
    )
    assert await received(trim, *fields) == b"Accept: a\r\n\r\n"
