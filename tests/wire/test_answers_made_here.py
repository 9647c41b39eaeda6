"""Answers that the proxy makes itself, fixed ones and refusals: what each leaves the client's connection in.

A request whose body was received whole leaves it as it was; else the answer is the last one, and the client can read it
whole however much it still sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.wire.harness import (
    OK,
    Edge,
    RawClient,
    RawUpstream,
    UpstreamSide,
    answering,
    app,
    edge,
    eventually,
    raw_upstream,
)

NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
#: Whose body is not read, by what is asked for: the status, and the table of the route that answers.
LOCAL: dict[str, tuple[int, dict[str, Any] | None]] = {
    "fixed": (200, {"respond": {"body": "here"}}),
    "no-content": (204, {"respond": {"status": 204}}),
    "redirect": (308, {"redirect": {"to": "https://new.example/"}}),
    "nowhere": (404, None),
    "forbidden": (403, {"to": "app", "policies": {"access": {"deny": ["127.0.0.1/32"]}}}),
    "nobody": (401, {"to": "app", "policies": {"auth": {"keys": "keys"}}}),
    "too-many": (429, {"to": "app", "policies": {"rate_limit": ["none"]}}),
    "too-large": (413, {"to": "app", "policies": {"size_limit": {"body": "1B"}}}),
    "method": (405, {"to": "app", "match": {"path": "/method", "methods": ["DELETE"]}}),
    "breaker": (503, {"to": "broken"}),
}
NAMES = sorted(LOCAL)
#: A body that is too large ends the connection even if it is all there: more is to be expected of who sent it.
UNREAD = [name for name in NAMES if name != "too-large"]


@asynccontextmanager
async def local() -> AsyncIterator[tuple[Edge, RawUpstream]]:
    """An edge with all of LOCAL, whose limits are used up and whose breaker is open; /next goes upstream."""
    async with raw_upstream(answering(OK)) as upstream:
        config = app(upstream.port)
        config["upstreams"]["broken"] = config["upstreams"]["app"]
        config["limits"] = {"none": {"key": "route", "requests": "1/h"}}
        tables = [{"match": {"path": f"/{name}"}, **table} for name, (_, table) in LOCAL.items() if table is not None]
        config["routes"] = [{"to": "app", "match": {"path": "/next"}}, *tables]
        async with edge(config, materials={"keys": b""}) as running:
            running.worker.order_breakers("open", ["broken"], None, 0.0)
            assert (await running.ask(b"GET /too-many HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
            upstream.heads.clear()
            yield running, upstream


def request(name: str, *fields: bytes, method: str = "POST", version: str = "1.1") -> bytes:
    lines = b"".join(field + b"\r\n" for field in fields)
    return f"{method} /{name} HTTP/{version}\r\nHost: x\r\n".encode() + lines + b"\r\n"


def framed(body: bytes, *, chunked: bool) -> tuple[bytes, bytes]:
    """The framing field, and the body in it."""
    if chunked:
        return b"Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    return b"Content-Length: %d" % len(body), body


async def goes_on(client: RawClient) -> bool:
    """Whether the connection takes another request."""
    await client.send(NEXT)
    answer = await client.answer()
    return (answer.status, answer.body) == (200, b"ok")


@pytest.mark.parametrize("name", UNREAD)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
async def test_A16_a_body_that_is_there_is_dropped_and_the_connection_goes_on(name: str, chunked: bool) -> None:
    field, body = framed(SMUGGLED, chunked=chunked)
    async with local() as (running, upstream):
        client = await running.connect()
        await client.send(request(name, field) + body)
        answer = await client.answer()
        assert (answer.status, answer.get("connection")) == (LOCAL[name][0], None)
        assert await goes_on(client)
        assert [head.split()[1] for head in upstream.heads] == [b"/next"]


@pytest.mark.parametrize(("name", "chunked"), [*((name, False) for name in NAMES), *((name, True) for name in UNREAD)])
async def test_A16_C04_a_body_that_is_still_to_come_ends_the_connection(name: str, chunked: bool) -> None:
    field, body = framed(SMUGGLED * 10_000, chunked=chunked)
    async with local() as (running, upstream):
        client = await running.connect()
        await client.send(request(name, field))
        await client.send(body + SMUGGLED)  # all of it, before the answer is read
        answer = await client.answer()
        assert (answer.status, answer.get("connection")) == (LOCAL[name][0], "close")
        assert (await client.rest()) == (b"", "fin")
        assert upstream.heads == []


@pytest.mark.parametrize("name", NAMES)
async def test_C04_no_100_continue_for_a_body_that_nobody_reads(name: str) -> None:
    async with local() as (running, upstream):
        answer = await running.ask(request(name, b"Content-Length: 5", b"Expect: 100-continue"))
        assert (answer.status, answer.get("connection")) == (LOCAL[name][0], "close")
        assert upstream.heads == []


@pytest.mark.parametrize("name", UNREAD)
async def test_C01_a_head_request_gets_the_head_of_the_answer_alone(name: str) -> None:
    async with local() as (running, _):
        client = await running.connect()
        await client.send(request(name, method="GET"))
        whole = await client.answer()
        await client.send(request(name, method="HEAD"))
        head = await client.answer(head_request=True)
        assert head.status == whole.status
        assert head.get("content-length") == whole.get("content-length") or name == "method"  # which it names
        assert head.get("transfer-encoding") is None
        assert await goes_on(client)


@pytest.mark.parametrize("name", UNREAD)
@pytest.mark.parametrize("keeps", [False, True], ids=["closes", "keeps"])
async def test_B13_an_old_client_is_answered_as_it_asked(name: str, keeps: bool) -> None:
    async with local() as (running, _):
        client = await running.connect()
        fields = [b"Content-Length: 2", *([b"Connection: keep-alive"] if keeps else [])]
        await client.send(request(name, *fields, version="1.0") + b"hi")
        answer = await client.answer()
        assert answer.status == LOCAL[name][0]
        assert answer.get("transfer-encoding") is None
        assert answer.get("connection") == ("keep-alive" if keeps else "close")
        assert await goes_on(client) if keeps else await client.rest() == (b"", "fin")


@pytest.mark.parametrize("name", NAMES)
async def test_C04_who_asks_to_close_is_closed(name: str) -> None:
    async with local() as (running, _):
        client = await running.connect()
        await client.send(request(name, b"Content-Length: 2", b"Connection: close") + b"hi")
        answer = await client.answer()
        await client.send(SMUGGLED)
        assert (answer.status, answer.get("connection")) == (LOCAL[name][0], "close")
        assert (await client.rest())[0] == b""


async def test_pipelined_requests_of_all_kinds_are_answered_in_order() -> None:
    kinds = [kind for name in UNREAD for kind in (name, "next")] * 2
    pieces = [
        request(kind, b"Content-Length: 3", method="DELETE" if kind == "next" else "POST") + b"abc" for kind in kinds
    ]
    async with local() as (running, upstream):
        client = await running.connect()
        sending = asyncio.get_running_loop().create_task(client.send(b"".join(pieces)))
        for kind in kinds:
            answer = await client.answer()
            assert answer.status == (200 if kind == "next" else LOCAL[kind][0]), kind
        await sending
        assert await goes_on(client)
        assert len(upstream.heads) == len(UNREAD) * 2 + 1


async def test_a_malformed_request_behind_good_ones_is_told_after_their_answers() -> None:
    go = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            await go.wait()
            await side.send(OK)

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(NEXT * 3)
        await eventually(lambda: bool(upstream.heads))
        (connection,) = running.worker._open()
        await client.send(b"GET / HTTP/1.1\r\nHost : x\r\n\r\n" + SMUGGLED)
        await eventually(lambda: connection._deaf)
        go.set()
        for _ in range(3):
            assert (await client.answer()).body == b"ok"
        last = await client.answer()
        assert (last.status, last.get("connection")) == (400, "close")
        assert (await client.rest())[0] == b""
        assert len(upstream.heads) == 3


@pytest.mark.parametrize("behind", [b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", b"\0\0\0\0"])
async def test_what_came_together_with_something_malformed_is_refused_with_it(behind: bytes) -> None:
    async with local() as (running, upstream):
        client = await running.connect()
        await client.send(NEXT + behind)
        answer = await client.answer()
        assert (answer.status, answer.get("connection")) == (400, "close")
        assert (await client.rest())[0] == b""
        assert upstream.heads == []


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "POST"])
async def test_a_405_names_the_methods_that_are_served(method: str) -> None:
    async with local() as (running, _):
        target = b"x:443" if method == "CONNECT" else b"/method"
        answer = await running.ask(method.encode() + b" " + target + b" HTTP/1.1\r\nHost: x:443\r\n\r\n")
        assert answer.status == 405
        allowed = (answer.get("allow") or "").split(", ")
        assert "DELETE" in allowed
        assert method not in allowed or method == "POST"
        assert (method == "POST") == (allowed == ["DELETE"])


async def test_the_port_that_redirects_leaves_connections_in_order_too() -> None:
    config = {**app(1), "listener": {"redirect": "https"}}
    async with edge(config) as running:
        client = await running.connect()
        await client.send(b"POST /a?b HTTP/1.1\r\nHost: a.example\r\nContent-Length: 34\r\n\r\n" + SMUGGLED)
        answer = await client.answer()
        assert (answer.status, answer.get("location")) == (308, "https://a.example/a?b")
        await client.send(b"HEAD http://b.example/c HTTP/1.1\r\nHost: a.example\r\n\r\n")
        answer = await client.answer(head_request=True)
        assert (answer.status, answer.get("location")) == (308, "https://b.example/c")
        await client.send(b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 9\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.get("connection")) == (308, "close")
        await client.send(b"123456789" + SMUGGLED)
        assert (await client.rest())[0] == b""
