"""WebSocket through the proxy: bytes in, the same bytes out, both ways, until one side ends."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.wire.harness import UpstreamSide, answering, app, edge, eventually, raw_upstream, reached
from tests.wire.websocket import AGREE, ASK, agreeing, chat, close_frame, echo, frame, settled, shake, tunnelled


async def test_F04_the_handshake_passes_as_it_is_said() -> None:
    offered = b"Sec-WebSocket-Protocol: graphql-ws, v2\r\nSec-WebSocket-Extensions: permessage-deflate; x=1\r\n"
    chosen = b"Sec-WebSocket-Protocol: v2\r\nSec-WebSocket-Extensions: permessage-deflate\r\nX-Own: 1\r\n"
    async with (
        raw_upstream(agreeing(echo, fields=chosen)) as upstream,
        edge(chat(upstream.port)) as running,
    ):
        _, head = await shake(running, fields=offered)
        sent = upstream.heads[0]
        assert sent.startswith(b"GET /chat?room=1 HTTP/1.1\r\nHost: x\r\n")
        for line in (offered, b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"):
            assert line in sent
        assert sent.count(b"Connection: Upgrade\r\nUpgrade: websocket\r\n") == 1
        assert sent.lower().count(b"upgrade:") == 1
        assert b"keep-alive" not in sent
        assert b"X-Forwarded-For: 127.0.0.1\r\n" in sent
        assert chosen in head
        assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in head
        assert head.count(b"Connection: Upgrade\r\nUpgrade: websocket\r\n") == 1
        assert b"Transfer-Encoding" not in head
        assert b"Content-Length" not in head


@pytest.mark.parametrize("chosen", [b"", b"Sec-WebSocket-Protocol: mqtt\r\n"])
async def test_F04_a_choice_that_the_client_did_not_offer_is_for_the_client_to_judge(chosen: bytes) -> None:
    async with raw_upstream(agreeing(echo, fields=chosen)) as upstream, edge(chat(upstream.port)) as running:
        _, head = await shake(running, fields=b"Sec-WebSocket-Protocol: graphql-ws, v2\r\n")
        assert head.count(b"Sec-WebSocket-Protocol") == (1 if chosen else 0)
        assert chosen in head


CLOSES = {
    "empty": frame(8, b""),
    "a code of its own": close_frame(4404, b"Document deleted"),
    "bye": close_frame(4001, b"bye"),
    "the longest reason": close_frame(1000, b"r" * 123),
    "no UTF-8": close_frame(1000, b"\xff\xfe"),
    "reserved 1004": close_frame(1004),
    "reserved 1006": close_frame(1006),
    "below 1000": close_frame(999),
    "above 4999": close_frame(5000),
    "no frame at all": b"",
}


@pytest.mark.parametrize("said", CLOSES.values(), ids=CLOSES)
async def test_F01_F02_what_the_upstream_says_at_its_end_arrives_and_then_both_are_closed(said: bytes) -> None:
    async def talk(side: UpstreamSide) -> None:
        await side.send(said)

    async with tunnelled(talk) as (_, running, client):
        assert await client.rest() == (said, "fin")
        await settled(running)


@pytest.mark.parametrize("said", CLOSES.values(), ids=CLOSES)
async def test_F01_F02_what_the_client_says_at_its_end_arrives_and_then_both_are_closed(said: bytes) -> None:
    async def talk(side: UpstreamSide) -> None:
        await side.gone()

    async with tunnelled(talk) as (upstream, running, client):
        await client.send(said)
        client.close()
        await reached(upstream.left)
        assert upstream.received.removeprefix(upstream.heads[0]) == said
        await settled(running)


@pytest.mark.parametrize("reset", [False, True])
async def test_F01_a_client_that_is_lost_ends_the_tunnel(reset: bool) -> None:
    async with tunnelled(echo) as (upstream, running, client):
        await client.send(b"hello")
        await client.until(b"hello")
        client.reset() if reset else client.close()
        await reached(upstream.left)
        await settled(running)


async def test_F01_an_upstream_that_is_lost_ends_the_tunnel() -> None:
    async def talk(side: UpstreamSide) -> None:
        await side.receive()
        side.reset()

    async with tunnelled(talk) as (_, running, client):
        await client.send(b"hello")
        assert (await client.rest())[0] == b""
        await settled(running)


async def test_F01_a_side_that_sends_no_more_and_takes_nothing_ends_too() -> None:
    closed = asyncio.Event()

    async def talk(side: UpstreamSide) -> None:
        side.send_no_more()
        await closed.wait()

    async with tunnelled(talk) as (_, running, client):
        assert (await client.rest())[0] == b""
        await settled(running)
        closed.set()


PIECES = [frame(0 if i else 2, os.urandom(1024), final=i == 5119) for i in range(5120)]
MESSAGES = {
    "20 MiB in one frame": frame(2, bytes(range(256)) * (20 << 12)),
    "5 MiB in 1 kB fragments with pings between": b"".join(
        piece + (frame(9, b"ping %d" % i) if i % 100 == 0 else b"") for i, piece in enumerate(PIECES)
    ),
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
async def test_F05_messages_of_any_size_pass_both_ways(message: bytes) -> None:
    async with tunnelled(echo) as (upstream, _, client):
        upstream.records = False
        sending = asyncio.get_running_loop().create_task(client.send(message))
        got = bytearray()
        while len(got) < len(message):
            data = await client.receive()
            assert data
            got += data
        await sending
        assert bytes(got) == message


async def test_F04_bytes_behind_the_request_and_behind_the_101_are_not_lost() -> None:
    early = frame(1, b"welcome") * 3
    behind = frame(1, b"hello", masked=True) * 3
    async with raw_upstream(agreeing(echo, early=early)) as upstream, edge(chat(upstream.port)) as running:
        client, _ = await shake(running, behind=behind)
        assert await client.until(early) == early
        assert await client.until(behind) == behind


async def test_F05_more_behind_the_request_than_may_wait_is_not_lost_either() -> None:
    behind = os.urandom(1_000_000)
    go = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.head()
        await go.wait()
        await side.send(AGREE + b"\r\n")
        await echo(side)

    async with raw_upstream(script) as upstream, edge(chat(upstream.port)) as running:
        client = await running.connect()
        sending = asyncio.get_running_loop().create_task(client.send(ASK + b"\r\n" + behind))
        await eventually(lambda: bool(upstream.heads))
        (connection,) = running.worker._open()
        await eventually(lambda: connection._behind is not None and len(connection._behind) > 65536)
        assert len(connection._behind or b"") <= 65536 + 262144  # then it is read no further
        go.set()
        await client.until(b"\r\n\r\n")
        assert await client.until(behind[-64:]) == behind
        await sending


@pytest.mark.parametrize("cut", [1, 7, 40])
async def test_F04_a_handshake_in_pieces(cut: int) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.head()
        agreed = AGREE + b"\r\nearly"
        for at in range(0, len(agreed), cut):
            await side.send(agreed[at : at + cut])
        await side.gone()

    async with raw_upstream(script) as upstream, edge(chat(upstream.port)) as running:
        client = await running.connect()
        for at in range(0, len(ASK) + 2, cut):
            await client.send((ASK + b"\r\n")[at : at + cut])
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        assert await client.until(b"early") == b"early"
        await client.send(b"answer")
        await eventually(lambda: upstream.received.endswith(b"\r\n\r\nanswer"))


@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request", b"426 Upgrade Required"])
async def test_F04_an_upstream_that_declines_is_heard_and_the_connection_ends(status: bytes) -> None:
    answer = b"HTTP/1.1 " + status + b"\r\nUpgrade: websocket\r\nContent-Length: 4\r\n\r\nno!\n"
    async with raw_upstream(answering(answer)) as upstream, edge(chat(upstream.port)) as running:
        client = await running.connect()
        await client.send(ASK + b"\r\n" + b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        declined = await client.answer()
        assert (declined.status, declined.body) == (int(status[:3]), b"no!\n")
        assert declined.get("connection") == "close"
        assert declined.get("upgrade") is None
        assert (await client.rest())[0] == b""
        assert b"smuggled" not in upstream.received
        await eventually(lambda: not running.worker._relays)


UNASKED = {
    "h2c": b"Upgrade: h2c\r\nConnection: Upgrade\r\n",
    "WebSocket among others": b"Upgrade: websocket, h2c\r\nConnection: Upgrade\r\n",
    "WebSocket and another line": b"Upgrade: h2c\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
    "WebSocket and then another line": b"Upgrade: websocket\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n",
    "not in Connection": b"Upgrade: websocket\r\nConnection: keep-alive\r\n",
    "without Connection": b"Upgrade: websocket\r\n",
}


@pytest.mark.parametrize("fields", UNASKED.values(), ids=UNASKED)
async def test_B02_nothing_but_websocket_is_tunnelled(fields: bytes) -> None:
    async with raw_upstream(agreeing(echo)) as upstream, edge(chat(upstream.port)) as running:
        answer = await running.ask(b"GET / HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n")
        assert answer.status == 502  # the upstream switched without being asked
        assert b"upgrade" not in upstream.heads[0].lower()
        await settled(running)


NOT_ASKED_SO = {
    "POST": ASK.replace(b"GET", b"POST"),
    "HTTP/1.0": ASK.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "with a body": ASK + b"Content-Length: 2\r\n",
    "with chunks": ASK + b"Transfer-Encoding: chunked\r\n",
}


@pytest.mark.parametrize("request_head", NOT_ASKED_SO.values(), ids=NOT_ASKED_SO)
async def test_B02_only_a_get_of_http_1_1_without_a_body_is_tunnelled(request_head: bytes) -> None:
    body = b"0\r\n\r\n" if b"chunked" in request_head else b"hi"
    async with raw_upstream(agreeing(echo)) as upstream, edge(chat(upstream.port)) as running:
        answer = await running.ask(request_head + b"\r\n" + body)
        assert answer.status == 502
        assert b"upgrade" not in upstream.heads[0].lower()


async def test_B02_a_route_that_does_not_say_so_never_tunnels() -> None:
    async with raw_upstream(agreeing(echo)) as upstream, edge(app(upstream.port)) as running:
        answer = await running.ask(ASK + b"\r\n")
        assert answer.status == 502
        assert b"upgrade" not in upstream.heads[0].lower()


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket, h2c", b"WebSocket\r\nUpgrade: h2c"])
async def test_B02_an_upstream_that_switches_to_something_else_is_a_bad_gateway(upgrade: bytes) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.head()
        await side.send(b"HTTP/1.1 101 Other\r\nConnection: Upgrade\r\nUpgrade: " + upgrade + b"\r\n\r\n")
        await side.gone()

    async with raw_upstream(script) as upstream, edge(chat(upstream.port)) as running:
        assert (await running.ask(ASK + b"\r\n")).status == 502
        await reached(upstream.left)


async def test_F07_no_limit_of_http_holds_in_a_tunnel() -> None:
    limits = {"limits": {"head": "40ms", "keep_alive": "40ms", "body_idle": "40ms"}}
    timeouts = {"first_byte": "40ms", "idle": "40ms", "total": "40ms"}
    async with raw_upstream(agreeing(echo)) as upstream:
        config = {**chat(upstream.port, timeouts=timeouts), "listener": limits}
        async with edge(config) as running:
            client, _ = await shake(running)
            sweeps: set[float] = set()
            await eventually(lambda: sweeps.add(running.worker._sweep_due) or len(sweeps) > 10)  # of 20 ms each
            await client.send(frame(9, b"payload", masked=True))
            assert await client.until(b"payload") == frame(9, b"payload", masked=True)


async def test_F07_a_tunnel_in_which_nobody_speaks_is_closed() -> None:
    async with tunnelled(echo, idle="100ms") as (upstream, running, client):
        assert await client.rest() == (b"", "fin")
        await reached(upstream.left)
        await settled(running)
