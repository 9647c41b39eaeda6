"""Handshakes that fail, never end, or are none: bounded, told what can be told, and nobody else's trouble."""

from __future__ import annotations

import asyncio
import gc
import ssl

import pytest

from proxy.tls import ListenerTls
from tests.wire.harness import OK, Edge, answering, app, edge, eventually, raw_upstream
from tests.wire.tls import CLOSE, GET, MATERIALS, TLS, tls_client


def hello(name: str) -> bytes:
    """The first message of a client that asks for ``name``."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def tls_of(running: Edge) -> ListenerTls:
    """The context of an edge's listener."""
    [listening] = running.worker._listening.values()
    assert listening.tls is not None
    return listening.tls


async def test_plain_http_on_a_tls_port_is_told_so() -> None:
    async with edge({**app(1), "listener": TLS}, materials=MATERIALS) as running:
        client = await running.connect()
        await client.send(CLOSE)
        answer = await client.answer()
        assert (answer.status, answer.get("connection")) == (400, "close")
        assert b"speaks HTTPS" in answer.body
        await client.send(b"x")  # a client that goes on is not listened to
        assert (await client.rest())[0] == b""


async def test_a_broken_handshake_gets_an_alert_and_the_end() -> None:
    async with edge({**app(1), "listener": TLS}, materials=MATERIALS) as running:
        client = await running.connect()
        await client.send(b"\x16\x03\x01\x00\x05hello")
        assert (await client.receive() or b"")[:1] == b"\x15"  # an alert record
        await client.send(b"x")
        assert (await client.rest())[0] == b""


async def test_another_protocol_is_closed_at_once() -> None:
    async with edge({**app(1), "listener": TLS}, materials=MATERIALS) as running:
        client = await running.connect()
        await client.send(b"SSH-2.0-OpenSSH_9.2\r\n")
        assert (await client.rest())[0] == b""


@pytest.mark.parametrize("name", [b"\xff" * 9, b"a..b.test", b"-" * 9], ids=["not ASCII", "empty label", "hyphens"])
async def test_a_name_that_no_host_has_is_no_fault_of_ours(name: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    async with edge({**app(1), "listener": TLS}, materials=MATERIALS) as running:
        client = await running.connect()
        await client.send(hello("nine.test").replace(b"nine.test", name))
        assert await client.receive()
    assert capfd.readouterr().err == ""


async def test_G05_five_hundred_stalled_handshakes_hinder_nobody() -> None:
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge({**app(upstream.port), "listener": TLS}, materials=MATERIALS) as running,
    ):
        begun = hello("a.example")
        stalled = [await running.connect() for _ in range(500)]
        for client in stalled[::2]:
            await client.send(begun[:50])
        tls = tls_of(running)
        async with tls_client(running) as client:
            assert (await client.ask()).endswith(b"ok")
        await eventually(lambda: tls.num_open == 500)


async def test_G05_a_handshake_that_does_not_end_is_ended_however_busy() -> None:
    listener = {**TLS, "limits": {"handshake": "100ms"}}
    async with edge({**app(1), "listener": listener}, materials=MATERIALS) as running:
        silent, dripping = await running.connect(), await running.connect()
        ended = asyncio.create_task(dripping.rest())
        for byte in hello("a.example" * 20):  # more of them than the time has milliseconds
            if ended.done():
                break
            await dripping.send(bytes([byte]))
            await asyncio.sleep(0.002)
        assert (await ended)[0] == (await silent.rest())[0] == b""
        await eventually(lambda: tls_of(running).num_open == 0)


async def test_G05_a_stalled_handshake_counts_as_a_connection() -> None:
    listener = {**TLS, "limits": {"connections": 10}}
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge({**app(upstream.port), "listener": listener}, materials=MATERIALS) as running,
    ):
        tls = tls_of(running)
        stalled = [await running.connect() for _ in range(74)]  # ten, and what is spared for refusals that are spoken
        await eventually(lambda: tls.num_open == 74)
        refused = await running.connect()
        assert (await refused.rest())[0] == b""
        for client in stalled:
            client.close()
        await eventually(lambda: tls.num_open == 0)
        async with tls_client(running) as client:
            assert (await client.ask()).endswith(b"ok")


async def test_connections_are_counted_until_they_end_without_help_from_the_collector() -> None:
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge({**app(upstream.port), "listener": TLS}, materials=MATERIALS) as running,
    ):
        tls = tls_of(running)
        gc.disable()
        try:
            async with tls_client(running) as client:
                await client.ask(GET)
                assert tls.num_open == 1
            await eventually(lambda: tls.num_open == 0)
        finally:
            gc.enable()
