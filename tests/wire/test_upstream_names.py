"""Servers by name: resolved again, moved, and verified by that name over TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.wire.certificates import certificate
from tests.wire.harness import (
    OK,
    answering,
    app,
    edge,
    eventually,
    listen,
    raw_upstream,
)
from tests.wire.upstreams import CHECK, GET, Gate, named, server_of


async def test_a_name_of_etc_hosts_is_served() -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = app()
        config["upstreams"]["app"] = {"servers": [f"http://localhost:{upstream.port}"]}
        async with edge(config) as running:
            assert (await running.ask(GET)).status == 200
            shown = running.worker.statistics()["upstreams"]["app"]["servers"][f"http://localhost:{upstream.port}"]
            assert "127.0.0.1" in shown["addresses"]


def listen_on(address: str, port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((address, port))
    listening.listen(128)
    listening.setblocking(False)
    return listening


class Dns:
    """What a name stands for now."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)

    async def __call__(self, name: str) -> list[str]:
        if not self.addresses:
            raise OSError(-2, "Name or service not known")
        return self.addresses


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Dns:
    answers = Dns("127.0.0.1")
    monkeypatch.setattr("proxy.upstream.resolver.look_up", answers)
    return answers


def by_name(port: int, **upstream: Any) -> dict[str, Any]:
    config = app()
    config["upstreams"]["app"] = {"servers": [f"http://app.internal:{port}"], "dns": {"ttl": "5ms"}, **upstream}
    return config


async def test_a_name_moves_and_connections_to_where_it_was_drain(dns: Dns) -> None:
    first = listen()
    port = first.getsockname()[1]
    async with (
        raw_upstream(named(b"old"), first) as old,
        raw_upstream(named(b"new"), listen_on("127.0.0.2", port)) as new,
        edge(by_name(port)) as running,
    ):
        assert {(await running.ask(GET)).body for _ in range(3)} == {b"old"}
        assert server_of(running).num_idle == 1
        dns.addresses = ["127.0.0.2"]
        await eventually(lambda: server_of(running).num_idle == 0)
        assert {(await running.ask(GET)).body for _ in range(3)} == {b"new"}
        assert old.num_connections == new.num_connections == 1


async def test_an_answer_that_comes_from_where_the_name_was_is_whole(dns: Dns) -> None:
    gate = Gate()
    first = listen()
    port = first.getsockname()[1]
    async with (
        raw_upstream(gate, first),
        raw_upstream(named(b"new"), listen_on("127.0.0.2", port)),
        edge(by_name(port)) as running,
    ):
        client = await running.connect()
        await client.send(GET)
        await eventually(lambda: gate.num_inside == 1)
        dns.addresses = ["127.0.0.2"]
        await eventually(lambda: server_of(running).addresses.all == ("127.0.0.2",))
        assert (await running.ask(GET)).body == b"new"
        gate.open.set()
        assert (await client.answer()).body == b"ok"
        await client.send(GET)
        assert (await client.answer()).body == b"new"


async def test_all_addresses_of_a_name_are_used_and_a_dead_one_costs_no_request(dns: Dns) -> None:
    dns.addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    first = listen()
    port = first.getsockname()[1]
    gates = [Gate(), Gate()]
    async with (
        raw_upstream(gates[0], first),
        raw_upstream(gates[1], listen_on("127.0.0.2", port)),
        edge(by_name(port)) as running,
    ):
        clients = [await running.connect() for _ in range(4)]
        for client in clients:
            await client.send(GET)
        await eventually(lambda: sum(gate.num_inside for gate in gates) == 4)
        assert all(gate.num_inside for gate in gates)
        for gate in gates:
            gate.open.set()
        assert [(await client.answer()).status for client in clients] == [200] * 4


async def test_a_name_that_does_not_resolve_is_a_502_with_the_reason_until_it_does(dns: Dns) -> None:
    dns.addresses = []
    async with raw_upstream(answering(OK)) as upstream, edge(by_name(upstream.port)) as running:
        answer = await running.ask(GET)
        assert answer.status == 502
        assert b"its name app.internal does not resolve: Name or service not known" in answer.body
        assert server_of(running).metrics.dns_failures.value >= 1
        dns.addresses = ["127.0.0.1"]
        await eventually(lambda: bool(server_of(running).addresses.all))
        assert (await running.ask(GET)).status == 200
        dns.addresses = []
        failures = server_of(running).metrics.dns_failures.value
        await eventually(lambda: server_of(running).metrics.dns_failures.value > failures)
        assert (await running.ask(GET)).status == 200


@asynccontextmanager
async def tls_upstream(name: str) -> AsyncIterator[tuple[int, list[str | None]]]:
    """Answers 200 over TLS with a certificate for ``name``: its port, and the names it was asked for."""
    asked: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _connection, name, _context: asked.append(name)
    with tempfile.NamedTemporaryFile() as pem:
        pem.write(b"".join(certificate(name)))
        pem.flush()
        context.load_cert_chain(pem.name)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(OK)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1], asked
    finally:
        server.close()


def over_tls(port: int) -> dict[str, Any]:
    return {
        "upstreams": {"app": {"servers": [f"https://app.internal:{port}"], "tls": {"ca": "/ca"}, "health": CHECK}},
        "routes": [{"to": "app"}],
    }


async def test_a_named_server_is_asked_and_verified_by_its_name_wherever_it_is(dns: Dns) -> None:
    materials = {"/ca": certificate("app.internal")[0]}
    async with tls_upstream("app.internal") as (port, asked), edge(over_tls(port), materials=materials) as running:
        assert (await running.ask(GET)).status == 200
        await eventually(lambda: server_of(running).metrics.checks[True].value > 0)
        assert server_of(running).metrics.checks[False].value == 0
        assert set(asked) == {"app.internal"}


async def test_a_check_does_not_accept_another_names_certificate(dns: Dns) -> None:
    materials = {"/ca": certificate("other.internal")[0]}
    async with tls_upstream("other.internal") as (port, _), edge(over_tls(port), materials=materials) as running:
        await eventually(lambda: not server_of(running).state.up)
        assert "certificate" in server_of(running).reason
        answer = await running.ask(GET)
        assert answer.status == 502
        assert b"its certificate is not accepted" in answer.body
