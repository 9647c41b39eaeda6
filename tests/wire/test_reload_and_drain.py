"""A snapshot swap cuts nothing and forgets nothing; a drain lets what is under way end."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from typing import Any

import pytest

from proxy.config_routes import ProxyConfig
from proxy.worker import BuildError
from tests.wire.certificates import certificate
from tests.wire.harness import OK, Edge, RawClient, UpstreamSide, answering, app, edge, eventually, listen, raw_upstream

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def reload(running: Edge, config: dict[str, Any], **build: Any) -> None:
    """Build and commit a configuration on the listener that is there."""
    document = {**config, "listeners": [{"address": f"127.0.0.1:{running.port}", **config.get("listener", {})}]}
    document.pop("listener", None)
    parsed = ProxyConfig.model_validate_json(json.dumps(document))
    snapshot = await running.worker.build(parsed, build.get("materials", {}), build.get("sockets", {}))
    await running.worker.commit(snapshot)


def streaming() -> tuple[Any, asyncio.Queue[bytes]]:
    """A script that begins a stream and passes on what is put into the queue; b"" ends it."""
    pieces = asyncio.Queue[bytes]()

    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while piece := await pieces.get():
            await side.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await side.send(b"0\r\n\r\n")

    return script, pieces


async def begin_stream(running: Edge) -> RawClient:
    client = await running.connect()
    await client.send(GET)
    await client.until(b"\r\n\r\n")
    return client


async def test_a_stream_outlives_a_reload_that_takes_its_route_away() -> None:
    script, pieces = streaming()
    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await begin_stream(running)
        await reload(running, {"routes": []})
        assert (await running.ask(GET)).status == 404
        pieces.put_nowait(b"still here")
        await client.until(b"still here")
        pieces.put_nowait(b"")
        assert (await client.until(b"0\r\n\r\n")).endswith(b"0\r\n\r\n")
        # The connection too: its next request takes the new snapshot.
        await client.send(GET)
        assert (await client.answer()).status == 404


async def test_idle_upstream_connections_and_limits_outlive_a_reload() -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = {**app(upstream.port), "limits": {"few": {"requests": "2/min"}}}
        config["routes"] = [{"to": "app", "policies": {"rate_limit": ["few"]}}]
        async with edge(config) as running:
            statuses = []
            for _ in range(3):
                statuses.append((await running.ask(GET)).status)
                await reload(running, config)
            assert statuses == [200, 200, 429]
            assert upstream.num_connections == 1


async def test_a_server_that_is_no_longer_configured_keeps_no_connections() -> None:
    async with (
        raw_upstream(answering(OK)) as old,
        raw_upstream(answering(OK)) as new,
        edge(app(old.port)) as running,
    ):
        assert (await running.ask(GET)).status == 200
        server = running.worker._snapshot.upstreams["app"].servers[0]
        assert server.num_idle == 1
        await reload(running, app(new.port))
        assert server.num_idle == 0
        assert (await running.ask(GET)).status == 200
        assert len(new.heads) == 1


async def test_a_build_that_fails_changes_nothing_and_says_every_problem() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        bad = {"upstreams": {}, "routes": [{"to": "nowhere"}, {"to": "nowhere", "match": {"path": "/x"}}]}
        with pytest.raises(BuildError) as failure:
            await reload(running, bad)
        assert len(failure.value.problems) == 2
        assert (await running.ask(GET)).status == 200


async def test_listeners_come_and_go() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        with closing(listen()) as second:
            address = f"127.0.0.1:{second.getsockname()[1]}"
            both = {**app(upstream.port), "listeners": [{"address": f"127.0.0.1:{running.port}"}, {"address": address}]}
            parsed = ProxyConfig.model_validate_json(json.dumps(both))
            await running.worker.commit(await running.worker.build(parsed, {}, {address: second}))
            first_port, running.port = running.port, second.getsockname()[1]
            assert (await running.ask(GET)).status == 200
            idle = await running.connect()
            await idle.send(GET)
            await idle.answer()
            running.port = first_port
            await reload(running, app(upstream.port))
            assert await idle.rest() == (b"", "fin")
            assert (await running.ask(GET)).status == 200


async def test_a_listener_that_is_made_anew_keeps_its_socket() -> None:
    pair = certificate("a.example")
    files = {"/c": pair[0], "/k": pair[1]}
    tls = {"certificates": [{"cert": "/c", "key": "/k"}]}
    async with edge({**app(1), "listener": {"tls": tls}}, materials=files) as running:
        listening = running.worker._listening[f"127.0.0.1:{running.port}"]
        await reload(running, {**app(1), "listener": {"tls": tls}}, materials=files)
        assert running.worker._listening[f"127.0.0.1:{running.port}"] is listening
        await reload(running, {**app(1), "listener": {"tls": {**tls, "min_version": "1.3"}}}, materials=files)
        assert running.worker._listening[f"127.0.0.1:{running.port}"] is not listening
        (await running.connect()).close()


async def test_D08_a_drain_closes_what_is_idle_and_waits_for_the_rest() -> None:
    script, pieces = streaming()
    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        stream = await begin_stream(running)
        idle = await running.connect()
        await eventually(lambda: len(running.worker._open()) == 2)
        drain = asyncio.get_running_loop().create_task(running.worker.drain(30.0))
        assert await idle.rest() == (b"", "fin")
        pieces.put_nowait(b"last words")
        await stream.until(b"last words")
        assert not drain.done()
        pieces.put_nowait(b"")
        assert (await stream.rest()) == (b"\r\n0\r\n\r\n", "fin")
        assert await drain is True
        # The socket is the supervisor's: who connects now waits in its queue for the next worker.
        await running.connect()
        assert running.worker.statistics()["connections"] == 0


async def test_D08_a_drain_never_breaks_an_upload() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhello")
        await eventually(lambda: bool(upstream.heads))
        drain = asyncio.get_running_loop().create_task(running.worker.drain(30.0))
        await asyncio.sleep(0)
        await client.send(b"world")
        answer = await client.answer()
        assert answer.body == b"ok"
        assert answer.get("connection") == "close"
        assert await drain is True


async def test_D08_at_the_deadline_what_is_left_is_cut() -> None:
    script, _ = streaming()
    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        stream = await begin_stream(running)
        assert await running.worker.drain(0.1) is False
        rest, _ = await stream.rest()
        assert not rest.endswith(b"0\r\n\r\n")
