"""What the upstream receives of a request that is served."""

from __future__ import annotations

import pytest

from tests.wire.harness import OK, answering, app, edge, raw_upstream


async def forwarded(request: bytes, **tables: object) -> bytes:
    """The head that the upstream received of a request."""
    async with raw_upstream(answering(OK)) as upstream, edge({**app(upstream.port), **tables}) as running:
        assert (await running.ask(request)).status == 200
        return upstream.heads[0]


async def test_B01_what_connection_lists_is_the_clients_and_not_ours() -> None:
    head = await forwarded(
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 6.6.6.6\r\nX-Secret: 1\r\n"
        b"Connection: X-Forwarded-For, X-Real-IP, X-Request-Id, X-Secret\r\n\r\n"
    )
    assert b"X-Forwarded-For: 127.0.0.1\r\n" in head
    assert b"6.6.6.6" not in head
    assert b"X-Secret" not in head
    assert b"X-Request-Id: " in head
    assert b"Connection" not in head


async def test_B02_an_upgrade_is_served_as_a_plain_request() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
            b"GET /behind HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b"ok")
        # What the parser made of the bytes behind an upgrade is not to be trusted: the connection is over.
        assert answer.get("connection") == "close"
        assert (await client.rest())[0] == b""
        assert len(upstream.heads) == 1
        assert b"upgrade" not in upstream.heads[0].lower()
        assert b"HTTP2-Settings" not in upstream.heads[0]


async def test_A11_the_authority_of_the_target_decides() -> None:
    head = await forwarded(b"GET http://allowed.example/x?y HTTP/1.1\r\nHost: internal.example\r\n\r\n")
    assert head.startswith(b"GET /x?y HTTP/1.1\r\nHost: allowed.example\r\n")
    assert b"internal.example" not in head


async def test_A11_two_slashes_are_a_path() -> None:
    head = await forwarded(b"GET //evil.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n")
    assert head.startswith(b"GET //evil.example/x HTTP/1.1\r\nHost: a.example\r\n")


async def test_B10_the_target_is_byte_identical() -> None:
    target = b"/a%28b%29/%3A/%25/x%2520y/%7e/+/;p?q=%2B+%20&&x=&y"
    assert (await forwarded(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"GET " + target + b" HTTP")
    assert (await forwarded(b"GET /a? HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"GET /a? HTTP/1.1\r\n")


async def test_A10_an_old_client_needs_no_host() -> None:
    assert b"Host: \r\n" in await forwarded(b"GET / HTTP/1.0\r\n\r\n")


async def test_B11_a_route_rule_cannot_be_dodged() -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = app(upstream.port)
        config["routes"] = [
            {"to": "app", "match": {"path": "/public/*"}},
            {"to": "app", "match": {"path": "/admin/*"}, "policies": {"access": {"allow": ["10.0.0.0/8"]}}},
        ]
        async with edge(config) as running:
            for target in (b"/public/../admin", b"/public/%2e%2e/admin", b"/public/.%2E/admin", b"//admin", b"/%61dmin",
                           b"/public%2e/../admin", b"/admin/", b"/./admin"):  # fmt: skip
                answer = await running.ask(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
                assert answer.status == 403, target
            assert (await running.ask(b"GET /ADMIN HTTP/1.1\r\nHost: x\r\n\r\n")).status == 404
            assert upstream.received == b""
            await running.ask(b"GET /admin/../public/x HTTP/1.1\r\nHost: x\r\n\r\n")
            assert upstream.heads[0].startswith(b"GET /public/x HTTP/1.1\r\n")


LIMITS = {"limits": {"few": {"key": "client", "requests": "5/min"}}}


async def statuses_with_forwarded_for(trusted: list[str], value: bytes) -> list[int]:
    """The statuses of six requests whose X-Forwarded-For differ; ``%d`` in ``value`` is their number."""
    async with raw_upstream(answering(OK)) as upstream:
        config = {**app(upstream.port), **LIMITS, "listener": {"trusted_proxies": trusted}}
        config["routes"] = [{"to": "app", "policies": {"rate_limit": ["few"]}}]
        async with edge(config) as running:
            requests = [b"GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: " + value % i + b"\r\n\r\n" for i in range(6)]
            return [(await running.ask(request)).status for request in requests]


async def test_B05_a_client_does_not_choose_its_bucket() -> None:
    limited = [200] * 5 + [429]
    assert await statuses_with_forwarded_for([], b"9.9.9.%d") == limited
    assert await statuses_with_forwarded_for(["127.0.0.0/8"], b"9.9.9.%d, 198.51.100.7") == limited
    assert await statuses_with_forwarded_for(["127.0.0.0/8"], b"9.9.9.%d, unknown") == limited
    assert await statuses_with_forwarded_for(["127.0.0.0/8"], b"9.9.9.%d") == [200] * 6


@pytest.mark.parametrize(
    "value",
    [
        b"9.9.9.%d\r\nX-Forwarded-For: 198.51.100.7",
        b"9.9.9.%d, [2001:db8::1]",
        b"9.9.9.%d, [2001:db8::1]:4711",
        b"9.9.9.%d, 2001:db8::1",
        b"9.9.9.%d, 198.51.100.7:4711",
        b"9.9.9.%d, fe80::1%%eth0",
        b"9.9.9.%d,",
        b"9.9.9.%d, , 198.51.100.7",
        b'9.9.9.%d, "198.51.100.7"',
    ],
)
async def test_B05_whatever_the_last_hop_is_written_as(value: bytes) -> None:
    limited = [200] * 5 + [429]
    assert await statuses_with_forwarded_for(["127.0.0.0/8"], value) == limited
    assert await statuses_with_forwarded_for([], value) == limited


@pytest.mark.parametrize(
    "fields",
    [
        b"Accept-Encoding: gzip;q=0.5, br\r\nAccept: a/b\r\nUser-Agent: own\r\n",
        b"Accept-Encoding: \r\nAccept-Encoding: identity\r\n",
        b'Range: bytes=0-9, 20-\r\nIf-Range: "a"\r\n',
        b"Cookie: a=b\r\nCookie: c=d\r\nAuthorization: Custom x\r\n",
        b"X-Empty: \r\nx-case: A b  c\r\nX-Latin: caf\xe9\r\n",
    ],
)
async def test_B08_what_is_end_to_end_arrives_as_it_was_sent(fields: bytes) -> None:
    head = await forwarded(b"GET / HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n")
    assert fields in head
    for name in (b"accept", b"user-agent", b"range", b"cookie"):
        assert (b"\r\n" + name in head.lower()) == (b"\r\n" + name in b"\r\n" + fields.lower()), name


@pytest.mark.parametrize("status", [b"206 Partial Content", b"416 Range Not Satisfiable"])
async def test_a_range_and_its_answer_pass_untouched(status: bytes) -> None:
    answer = (
        b"HTTP/1.1 " + status + b"\r\nContent-Range: bytes 2-3/9\r\nAccept-Ranges: bytes\r\nContent-Length: 2\r\n\r\nok"
    )
    async with raw_upstream(answering(answer)) as upstream, edge(app(upstream.port)) as running:
        got = await running.ask(b"GET / HTTP/1.1\r\nHost: x\r\nRange: bytes=2-3\r\n\r\n")
        assert (got.status, got.body, got.get("content-range")) == (int(status[:3]), b"ok", "bytes 2-3/9")
        assert got.get("accept-ranges") == "bytes"
        assert b"\r\nRange: bytes=2-3\r\n" in upstream.heads[0]


async def test_B01_fields_of_one_hop_end_here() -> None:
    head = await forwarded(
        b"POST / HTTP/1.1\r\nHost: x\r\nKeep-Alive: 5\r\nProxy-Connection: close\r\nProxy-Authorization: Basic eA==\r\n"
        b"TE: trailers, deflate\r\nTrailer: X-T\r\nConnection: keep-alive, X-One, , Host\r\nX-One: 1\r\nX_One: 2\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-T: 1\r\n\r\n"
    )
    for name in (b"keep-alive", b"proxy-", b"te:", b"trailer", b"connection", b"x-one", b"x_one", b"x-t"):
        assert b"\r\n" + name not in head.lower(), name
    assert head.count(b"\r\nHost: x\r\n") == 1
    assert head.count(b"Transfer-Encoding: chunked") == 1


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"PROPFIND", b"QUERY", b"M-SEARCH"])
async def test_a_method_and_its_body_arrive(method: bytes) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        for _ in range(2):
            await client.send(method + b" /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
            answer = await client.answer(head_request=method == b"HEAD")
            assert answer.status == 200
            if method == b"HEAD":  # which this upstream answers with a body: nobody's
                break
        assert upstream.received.count(b"\r\nContent-Length: 5\r\n\r\nhello") == len(upstream.heads)
        assert all(head.startswith(method + b" /x HTTP/1.1\r\n") for head in upstream.heads)


@pytest.mark.parametrize("connection", [b"", b"Connection: keep-alive\r\n"])
async def test_B13_an_old_clients_request_goes_on_as_ours(connection: bytes) -> None:
    head = await forwarded(b"POST /x HTTP/1.0\r\nHost: x\r\n" + connection + b"Content-Length: 2\r\n\r\nhi")
    assert head.startswith(b"POST /x HTTP/1.1\r\nHost: x\r\n")
    assert b"\r\nContent-Length: 2\r\n" in head
    assert b"connection" not in head.lower()


@pytest.mark.parametrize(
    ("target", "host", "sent"),
    [
        (b"http://a.example", b"a.example", b"/"),
        (b"http://A.example:80/x//y?z=//", b"A.example:80", b"/x//y?z=//"),
        (b"HTTPS://a.example/%7e", b"a.example", b"/%7e"),
        (b"http://a.example?q", b"a.example", b"/?q"),
        (b"http://[::1]:8080/", b"[::1]:8080", b"/"),
    ],
)
async def test_A11_absolute_targets_are_sent_as_paths(target: bytes, host: bytes, sent: bytes) -> None:
    head = await forwarded(b"GET " + target + b" HTTP/1.1\r\nHost: internal.example\r\n\r\n")
    assert head.startswith(b"GET " + sent + b" HTTP/1.1\r\nHost: " + host + b"\r\n")


async def test_A11_the_target_decides_about_route_and_limit() -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = {**app(upstream.port), "limits": {"few": {"key": "client", "requests": "1/h"}}}
        config["routes"] = [
            {"to": "app", "match": {"host": "limited.example"}, "policies": {"rate_limit": ["few"]}},
            {"to": "app", "match": {"host": "open.example"}},
        ]
        async with edge(config) as running:
            raw = b"GET http://limited.example/ HTTP/1.1\r\nHost: open.example\r\n\r\n"
            assert [(await running.ask(raw)).status for _ in range(2)] == [200, 429]
            raw = b"GET http://nowhere.example/ HTTP/1.1\r\nHost: open.example\r\n\r\n"
            assert (await running.ask(raw)).status == 404
            raw = b"GET http://open.example/ HTTP/1.1\r\nHost: limited.example\r\n\r\n"
            assert (await running.ask(raw)).status == 200
