"""Servers of an upstream: balanced, named, checked, ejected, bounded."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from proxy.config_routes import ProxyConfig
from proxy.upstream.connections import Server
from tests.wire.certificates import certificate
from tests.wire.harness import (
    OK,
    Edge,
    RawUpstream,
    Script,
    UpstreamSide,
    answering,
    app,
    edge,
    eventually,
    listen,
    raw_upstream,
    reached,
)

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CHECK = {"path": "/healthz", "interval": "10ms", "rise": 1, "fall": 1}


def get(path: str = "/", *fields: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: x", *fields, "", "")).encode()


def named(name: bytes) -> Script:
    """Answer with a name."""
    return answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(name), name))


def checked(answer: Callable[[], bytes]) -> Script:
    """Answer checks with what ``answer`` says, and everything else with 200."""

    async def script(side: UpstreamSide) -> None:
        while (head := await side.head()) is not None:
            await side.send(answer() if head.startswith(b"GET /healthz") else OK)

    return script


def server_of(running: Edge, index: int = 0) -> Server:
    snapshot = running.worker._snapshot
    assert snapshot is not None
    return snapshot.upstreams["app"].servers[index]


def seen(upstream: RawUpstream, path: bytes = b"/") -> int:
    """How many requests for this path it got."""
    return sum(head.startswith(b"GET %b " % path) for head in upstream.heads)


async def reload(running: Edge, config: dict[str, Any]) -> None:
    """Serve with another configuration on the same listener."""
    document = {**config, "listeners": [{"address": f"127.0.0.1:{running.port}"}]}
    parsed = ProxyConfig.model_validate_json(json.dumps(document))
    await running.worker.commit(await running.worker.build(parsed, {}, {}))


class Gate:
    """A script that answers the requests of all its connections only when it is told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.num_inside = 0
        self.most_inside = 0

    async def __call__(self, side: UpstreamSide) -> None:
        while await side.request() is not None:
            self.num_inside += 1
            self.most_inside = max(self.most_inside, self.num_inside)
            await self.open.wait()
            self.num_inside -= 1
            await side.send(OK)


# Balance


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


# Passive health


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


# Active health


async def test_a_server_that_fails_its_check_gets_no_requests_until_it_passes() -> None:
    answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    async with (
        raw_upstream(checked(lambda: answer)) as bad,
        raw_upstream(checked(lambda: OK)) as good,
        edge(app(bad.port, good.port, health=CHECK)) as running,
    ):
        await eventually(lambda: not server_of(running).state.up)
        assert [(await running.ask(GET)).status for _ in range(8)] == [200] * 8
        assert seen(bad) == 0
        shown = running.worker.statistics()["upstreams"]["app"]["servers"][f"http://127.0.0.1:{bad.port}"]
        assert (shown["up"], shown["reason"]) == (False, "it answered 503")
        answer = OK
        await eventually(lambda: server_of(running).state.up)
        async with asyncio.timeout(10.0):
            while not seen(bad):
                assert (await running.ask(GET)).status == 200


async def test_what_a_check_asks() -> None:
    health = {**CHECK, "host": "app.example", "path": "/healthz?full=1"}
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port, health=health)):
        await eventually(lambda: bool(upstream.heads))
        assert upstream.heads[0] == (
            b"GET /healthz?full=1 HTTP/1.1\r\nHost: app.example\r\nUser-Agent: headrace-check\r\nAccept: */*\r\n"
            b"Connection: close\r\n\r\n"
        )


OTHER = b"HTTP/1.1 204 No Content\r\n\r\n"
NOT_YET = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nstarting"
READY = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nall\r\n6\r\n ready\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("health", "answer", "reason"),
    [
        ({}, OTHER, ""),
        ({"status": [200]}, OTHER, "it answered 204"),
        ({"status": [200, "204-206"]}, OTHER, ""),
        ({"body": "ready"}, READY, ""),
        ({"body": "ready"}, NOT_YET, "its answer does not contain the text that health.body asks for"),
        ({}, b"nonsense\r\n\r\n", "the answer is malformed"),
        ({}, b"", "the connection closed before an answer"),
        ({"body": "ready"}, b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nre", "the connection closed"),
    ],
)
async def test_which_answers_are_good(health: dict[str, Any], answer: bytes, reason: str) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(answer)

    async with raw_upstream(script) as upstream, edge(app(upstream.port, health={**CHECK, **health})) as running:
        server = server_of(running)
        await eventually(lambda: server.metrics.checks[reason == ""].value > 0)
        assert server.state.up is (reason == "")
        assert server.reason.startswith(reason)
        assert server.metrics.checks[reason != ""].value == 0


async def test_a_check_that_hangs_or_never_ends_is_bounded() -> None:
    async def hanging(side: UpstreamSide) -> None:
        await side.request()
        await side.gone()

    async def endless(side: UpstreamSide) -> None:
        await side.request()
        await side.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while not side._upstream.broken.is_set():
            await side.send(b"x" * 65536)

    async with (
        raw_upstream(hanging) as upstream,
        edge(app(upstream.port, health={**CHECK, "timeout": "30ms"})) as running,
    ):
        await eventually(lambda: server_of(running).reason == "no answer within 0.03 s")
        await reached(upstream.left)
    async with (
        raw_upstream(endless) as upstream,
        edge(app(upstream.port, health={**CHECK, "body": "ready"})) as running,
    ):
        await eventually(lambda: server_of(running).reason.startswith("its answer does not contain"))


def watching(tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Those tasks that check a server or ask for a name."""
    return {task for task in tasks if getattr(task.get_coro(), "__qualname__", "") in ("Prober._run", "Resolver._run")}


async def test_checks_go_on_over_a_reload_and_end_with_their_server() -> None:
    async with raw_upstream(checked(lambda: OK)) as old, raw_upstream(checked(lambda: OK)) as new:
        async with edge(app(old.port, health=CHECK)) as running:
            await eventually(lambda: seen(old, b"/healthz") > 1)
            server = server_of(running)
            await reload(running, {**app(old.port, health=CHECK), "defaults": {"timeouts": {"connect": "9s"}}})
            assert server_of(running) is server
            before = seen(old, b"/healthz")
            await eventually(lambda: seen(old, b"/healthz") > before + 1)
            await reload(running, app(new.port, health=CHECK))
            await eventually(lambda: seen(new, b"/healthz") > 0)
            stopped = seen(old, b"/healthz")
            await eventually(lambda: seen(new, b"/healthz") > 5)
            assert seen(old, b"/healthz") <= stopped + 1
            before_drain = asyncio.all_tasks()
        await eventually(lambda: not asyncio.all_tasks() & watching(before_drain))


async def test_a_snapshot_that_is_not_in_use_checks_nothing() -> None:
    async with (
        raw_upstream(checked(lambda: OK)) as upstream,
        raw_upstream(answering(OK)) as other,
        edge(app(other.port)) as running,
    ):
        document = {**app(upstream.port, health=CHECK), "listeners": [{"address": f"127.0.0.1:{running.port}"}]}
        parsed = ProxyConfig.model_validate_json(json.dumps(document))
        snapshot = await running.worker.build(parsed, {}, {})
        assert (await running.ask(GET)).status == 200
        running.worker.discard(snapshot)
        assert not upstream.heads


# Names


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


# Bounds


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


# TLS


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
