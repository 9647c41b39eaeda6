"""Autobahn's cases of RFC 6455 and RFC 7692, as kosoku drives them, against an echo server: bare, and behind the proxy.

What is judged is the proxy: it may fail no case that the bare server does not fail.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import WSMsgType, web

from tests.wire.harness import edge

kosoku = pytest.importorskip("kosoku", reason="needs kosoku, from the extra `dev`")

#: Cases at once: most of their time is spent waiting for an end.
CONCURRENCY = 8

#: kosoku's cases leave files open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


async def echo(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(max_msg_size=0)
    await socket.prepare(request)
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            await socket.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)
    return socket


@asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    """The port of a server that echoes every message."""
    application = web.Application()
    application.router.add_get("/", echo)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def judged(port: int, *cases: str) -> dict[str, str]:
    """What went wrong, by case; and under "" how many there were."""
    try:
        results = await kosoku.run_fuzzingclient(f"ws://127.0.0.1:{port}/", list(cases), concurrency=CONCURRENCY)
    except kosoku.FailureError as failed:
        results = failed.results
    wrong = {case.case_id: f"{case.result} {case.result_close}" for case in results if not case.passed}
    return {"": str(len(results)), **wrong}


@pytest.mark.parametrize(
    ("cases", "number"),
    [
        pytest.param(["1.*", "2.*", "3.*", "4.*", "5.*"], 64, id="frames, pings, reserved bits, opcodes, fragments"),
        pytest.param(["6.*"], 145, id="UTF-8"),
        pytest.param(["7.*", "10.*"], 38, id="ends"),
        pytest.param(["9.*"], 54, id="large and many messages", marks=pytest.mark.slow),
        pytest.param(["12.1.1", "12.1.5", "13.1.1", "13.7.5"], 4, id="deflate", marks=pytest.mark.slow),
    ],
)
async def test_F_the_proxy_fails_no_case_that_its_upstream_does_not_fail(cases: list[str], number: int) -> None:
    async with echo_server() as port:
        upstreams = {"echo": {"servers": [f"http://127.0.0.1:{port}"]}}
        async with edge({"upstreams": upstreams, "routes": [{"to": "echo", "websocket": {}}]}) as running:
            bare = await judged(port, *cases)
            behind = await judged(running.port, *cases)
    assert behind.items() <= bare.items()
    assert behind[""] == str(number)
