"""How many connections a server has, who waits for one, and how no place is lost."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.wire.harness import (
    OK,
    Edge,
    UpstreamSide,
    answering,
    app,
    edge,
    eventually,
    raw_upstream,
)
from tests.wire.upstreams import CHECK, GET, Gate, checked, server_of


async def test_requests_wait_for_a_connection_in_line_and_all_are_served() -> None:
    gate = Gate()
    async with raw_upstream(gate) as upstream, edge(app(upstream.port, max_connections=2)) as running:
        clients = [await running.connect() for _ in range(6)]
        for client in clients:
            await client.send(GET)
        server = server_of(running)
        await eventually(lambda: gate.num_inside == 2 and server.statistics(0.0)["pending"] == 4)
        assert server.metrics.pending.value == 4.0
        gate.open.set()
        assert [(await client.answer()).status for client in clients] == [200] * 6
        assert gate.most_inside == 2
        assert upstream.num_connections == 2
        assert server.metrics.pending.value == 0.0
        assert server.statistics(0.0)["connections"] == 2


async def test_a_connection_that_ends_makes_place_for_who_waits() -> None:
    """Each answer closes its connection: the place goes on, not the connection."""
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
    async with raw_upstream(answering(closing)) as upstream, edge(app(upstream.port, max_connections=1)) as running:
        clients = [await running.connect() for _ in range(5)]
        for client in clients:
            await client.send(GET)
        assert [(await client.answer()).status for client in clients] == [200] * 5
        assert upstream.num_connections == 5
        await eventually(lambda: server_of(running).statistics(0.0)["connections"] == 0)


async def test_who_leaves_while_waiting_keeps_no_place() -> None:
    gate = Gate()
    async with raw_upstream(gate) as upstream, edge(app(upstream.port, max_connections=1)) as running:
        inside = await running.connect()
        await inside.send(GET)
        await eventually(lambda: gate.num_inside == 1)
        leaving = [await running.connect() for _ in range(3)]
        for client in leaving:
            await client.send(GET)
        server = server_of(running)
        await eventually(lambda: server.statistics(0.0)["pending"] == 3)
        for client in leaving:
            client.reset()
        await eventually(lambda: server.statistics(0.0)["pending"] == 0)
        gate.open.set()
        assert (await inside.answer()).status == 200
        assert (await running.ask(GET)).status == 200
        assert (server.statistics(0.0)["connections"], upstream.num_connections) == (1, 1)


async def test_who_leaves_while_a_connection_is_made_keeps_no_place() -> None:
    async def silent(side: UpstreamSide) -> None:
        await side.gone()

    async with raw_upstream(silent) as upstream:
        config = app(max_connections=1, tls={"verify": False})
        config["upstreams"]["app"]["servers"] = [f"https://127.0.0.1:{upstream.port}"]
        async with edge(config) as running:
            clients = [await running.connect() for _ in range(3)]
            server = server_of(running)
            for number, client in enumerate(clients):
                await client.send(GET)
                await eventually(lambda number=number: server.state.in_flight == number + 1)
            await eventually(lambda: upstream.num_connections == 1)
            for number, client in enumerate(clients, 1):
                client.reset()
                if number < len(clients):
                    await eventually(lambda number=number: upstream.num_connections == number + 1)
            await eventually(lambda: server.statistics(0.0)["connections"] == 0)
            assert server.statistics(0.0)["pending"] == server.state.in_flight == len(server._at) == 0


async def full(running: Edge, gate: Gate, count: int) -> None:
    """Take all connections."""
    for number in range(count):
        await (await running.connect()).send(GET)
        await eventually(lambda number=number: gate.num_inside == number + 1)


@pytest.mark.parametrize(
    ("bounds", "limit"),
    [({"pending": 0}, b"pending"), ({"pending_timeout": "20ms"}, b"pending_timeout")],
)
async def test_beyond_the_bounds_is_a_503_that_says_which_and_when_to_come_back(
    bounds: dict[str, Any], limit: bytes
) -> None:
    gate = Gate()
    config = app(0, max_connections=2, retry={"attempts": 1}, **bounds)
    async with raw_upstream(gate) as upstream:
        config["upstreams"]["app"]["servers"] = [f"http://127.0.0.1:{upstream.port}"]
        async with edge(config) as running:
            await full(running, gate, 2)
            answer = await running.ask(GET)
            assert answer.status == 503
            assert int(answer.get("retry-after") or 0) >= 1
            assert b"(%b)" % limit in answer.body
            server = server_of(running)
            assert server.metrics.refused[limit.decode()].value == 1
            assert server.state.fails_running == 0
            gate.open.set()


async def test_a_full_server_is_passed_by() -> None:
    """Whichever server the client's hash says: while it is full, another one serves."""
    gates = [Gate(), Gate()]
    async with raw_upstream(gates[0]) as one, raw_upstream(gates[1]) as two:
        config = app(one.port, two.port, balance={"hash": "client"}, max_connections=1)
        async with edge(config) as running:
            clients = [await running.connect() for _ in range(2)]
            for number, client in enumerate(clients):
                await client.send(GET)
                await eventually(lambda number=number: sum(gate.num_inside for gate in gates) == number + 1)
            assert [gate.num_inside for gate in gates] == [1, 1]
            for gate in gates:
                gate.open.set()
            assert [(await client.answer()).status for client in clients] == [200, 200]


async def test_D01_a_stale_connection_at_the_bound_gives_its_place_to_a_fresh_one() -> None:
    """All places are held by kept connections that the server is about to close: the retry is not refused."""

    async def once(side: UpstreamSide) -> None:
        if await side.request() is not None:
            await side.send(OK)
            await side.request()

    async with raw_upstream(once) as upstream, edge(app(upstream.port, max_connections=1, pending=0)) as running:
        assert [(await running.ask(GET)).status for _ in range(4)] == [200] * 4
        assert server_of(running).state.fails_running == 0


async def test_places_hold_through_every_way_to_end() -> None:
    """Answers, aborts, refusals and lost clients: in the end nothing is held."""
    answers = [
        OK,
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ncut",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"",
    ]
    turn = iter(range(1000))

    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            answer = answers[next(turn) % len(answers)]
            await side.send(answer)
            if answer is not OK:
                return

    config = {"breaker": {"min_requests": 1000}, "health": {"fails": 1000}, "retry": {"attempts": 1}}
    async with (
        raw_upstream(script) as upstream,
        edge(app(upstream.port, max_connections=3, pending=100, **config)) as running,
    ):
        clients = [await running.connect() for _ in range(30)]
        for number, client in enumerate(clients):
            await client.send(GET)
            if number % 5 == 0:
                client.reset()
        statuses = Counter[int]()
        for number, client in enumerate(clients):
            if number % 5:
                head = await client.until(b"\r\n\r\n")
                statuses[int(head.split(b" ")[1])] += 1
        assert set(statuses) <= {200, 502}
        server = server_of(running)
        await eventually(lambda: server.state.in_flight == 0)
        await eventually(lambda: server.statistics(0.0)["connections"] == server.num_idle)
        assert server.statistics(0.0)["pending"] == 0
        assert len(server._at) == server.num_idle


async def test_metrics_say_what_servers_do() -> None:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(raw_upstream(checked(lambda: OK)))
        running = await stack.enter_async_context(edge(app(upstream.port, health=CHECK)))
        assert (await running.ask(GET)).status == 200
        metrics = server_of(running).metrics
        await eventually(lambda: metrics.checks[True].value > 0)
        assert metrics.up.value == 1.0
        assert metrics.connects.value == 1.0
        assert metrics.connections.value == 1.0


async def test_when_the_line_is_full_the_least_urgent_are_refused_first_and_the_urgent_are_served_first() -> None:
    def level(path: str, default: str) -> dict[str, Any]:
        return {"match": {"path": path}, "to": "app", "policies": {"priority": {"default": default}}}

    gate = Gate()
    async with raw_upstream(gate) as upstream:
        config = app(upstream.port, max_connections=1, pending=2, retry={"attempts": 1})
        config["routes"] = [level("/high", "high"), level("/low", "low")]
        async with edge(config) as running:

            async def ask(path: str) -> Any:
                client = await running.connect()
                await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
                return client

            inside = await ask("/low")
            await eventually(lambda: gate.num_inside == 1)
            low = [await ask("/low")]
            await eventually(lambda: server_of(running).statistics(0.0)["pending"] == 1)
            low.append(await ask("/low"))
            await eventually(lambda: server_of(running).statistics(0.0)["pending"] == 2)
            high = await ask("/high")
            refused = await low.pop().answer()
            assert (refused.status, refused.get("retry-after")) == (503, "5")
            assert b"more urgent" in refused.body
            assert (await (await ask("/low")).answer()).status == 503
            gate.open.set()
            for client in (inside, high, *low):
                assert (await client.answer()).status == 200
            assert [head.split()[1] for head in upstream.heads] == [b"/low", b"/high", b"/low"]
