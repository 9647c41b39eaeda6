"""Which server takes a request: balanced, and left out by the failures of requests."""

from __future__ import annotations

import asyncio

import pytest

from tests.wire.harness import (
    OK,
    UpstreamSide,
    answering,
    app,
    edge,
    eventually,
    raw_upstream,
)
from tests.wire.upstreams import GET, Gate, named, server_of


def get(path: str = "/", *fields: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: x", *fields, "", "")).encode()


async def test_round_robin_goes_by_weight() -> None:
    async with raw_upstream(named(b"a")) as a, raw_upstream(named(b"b")) as b:
        servers = [{"url": f"http://127.0.0.1:{a.port}", "weight": 2}, f"http://127.0.0.1:{b.port}"]
        config = app()
        config["upstreams"]["app"] = {"servers": servers, "balance": "round_robin"}
        async with edge(config) as running:
            bodies = [(await running.ask(GET)).body for _ in range(9)]
    assert b"".join(bodies) == b"aba" * 3


async def test_a_server_with_weight_0_takes_nothing_new() -> None:
    async with raw_upstream(named(b"a")) as a, raw_upstream(named(b"b")) as b:
        config = app()
        config["upstreams"]["app"] = {
            "servers": [{"url": f"http://127.0.0.1:{a.port}", "weight": 0}, f"http://127.0.0.1:{b.port}"]
        }
        async with edge(config) as running:
            assert {(await running.ask(GET)).body for _ in range(6)} == {b"b"}
            assert not a.heads


@pytest.mark.parametrize(
    ("hashed", "same", "others"),
    [
        ({"header": "X-User"}, get("/", "X-User: ann"), [get("/", f"X-User: u{i}") for i in range(16)]),
        ({"cookie": "sid"}, get("/", "Cookie: a=1; sid=7"), [get("/", f"Cookie: sid={i}") for i in range(16)]),
        ("path", get("/same?q=1"), [get(f"/{i}") for i in range(16)]),
    ],
)
async def test_the_same_value_goes_to_the_same_server(hashed: object, same: bytes, others: list[bytes]) -> None:
    async with (
        raw_upstream(named(b"a")) as a,
        raw_upstream(named(b"b")) as b,
        edge(app(a.port, b.port, balance={"hash": hashed})) as running,
    ):
        assert len({(await running.ask(same)).body for _ in range(6)}) == 1
        assert {(await running.ask(other)).body for other in others} == {b"a", b"b"}


async def test_one_client_goes_to_one_server() -> None:
    async with (
        raw_upstream(named(b"a")) as a,
        raw_upstream(named(b"b")) as b,
        edge(app(a.port, b.port, balance={"hash": "client"})) as running,
    ):
        assert len({(await running.ask(GET)).body for _ in range(6)}) == 1


async def test_least_requests_passes_by_the_busy_one() -> None:
    gate = Gate()
    async with (
        raw_upstream(gate) as slow,
        raw_upstream(answering(OK)) as quick,
        edge(app(slow.port, quick.port)) as running,
    ):
        clients = [await running.connect() for _ in range(8)]
        for number, client in enumerate(clients):
            await client.send(GET)
            await eventually(lambda number=number: len(slow.heads) + len(quick.heads) == number + 1)
            if slow.heads:
                break
        assert len(slow.heads) == 1
        for _ in range(10):
            assert (await running.ask(GET)).status == 200
        assert len(slow.heads) == 1
        gate.open.set()


async def test_a_server_that_breaks_off_is_left_out_and_comes_back() -> None:
    broken = True

    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            if broken:
                return
            await side.send(OK)

    health = {"fails": 2, "eject": "50ms"}
    async with raw_upstream(script) as bad, raw_upstream(answering(OK)) as good:
        config = app(bad.port, good.port, balance="round_robin", health=health)
        async with edge(config) as running:
            for _ in range(10):
                assert (await running.ask(GET)).status == 200
            statistics = running.worker.statistics()["upstreams"]["app"]["servers"]
            bad_one = statistics[f"http://127.0.0.1:{bad.port}"]
            assert bad_one["ejections"] == server_of(running).metrics.ejections.value >= 1
            assert len(bad.heads) < 5
            broken, asked = False, len(bad.heads)
            async with asyncio.timeout(10.0):
                while len(bad.heads) == asked:
                    assert (await running.ask(GET)).status == 200


async def test_when_all_would_be_left_out_all_are_used() -> None:
    async def closing(side: UpstreamSide) -> None:
        await side.request()

    async with raw_upstream(closing) as one, raw_upstream(closing) as two:
        health = {"fails": 1, "eject": "60s"}
        breaker = {"min_requests": 1000}
        async with edge(app(one.port, two.port, health=health, breaker=breaker)) as running:
            for _ in range(8):
                assert (await running.ask(GET)).status == 502
            assert running.worker.statistics()["upstreams"]["app"]["panic"] is True
            assert len(one.heads) > 1
            assert len(two.heads) > 1
