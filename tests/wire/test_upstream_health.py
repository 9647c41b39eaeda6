"""Servers that are asked how they are: what is asked, what is a good answer, and what follows from it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy.config_routes import ProxyConfig
from tests.wire.harness import (
    OK,
    Edge,
    RawUpstream,
    UpstreamSide,
    answering,
    app,
    edge,
    eventually,
    raw_upstream,
    reached,
)
from tests.wire.upstreams import CHECK, GET, checked, server_of


def seen(upstream: RawUpstream, path: bytes = b"/") -> int:
    """How many requests for this path it got."""
    return sum(head.startswith(b"GET %b " % path) for head in upstream.heads)


async def reload(running: Edge, config: dict[str, Any]) -> None:
    """Serve with another configuration on the same listener."""
    document = {**config, "listeners": [{"address": f"127.0.0.1:{running.port}"}]}
    parsed = ProxyConfig.model_validate_json(json.dumps(document))
    await running.worker.commit(await running.worker.build(parsed, {}, {}))


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
