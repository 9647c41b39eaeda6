"""A server that comes back: who connects while nobody listens waits for it, as long as connecting may take."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from proxy.config import Health
from proxy.upstream.connections import Address, ConnectFailed, Server
from proxy.upstream.state import ServerState


def server(path: Path, *, comes_back: bool) -> Server:
    state = ServerState("engine", Health(), alone=True)
    return Server(Address(path=str(path)), None, state, max_idle=1, keep_alive_s=1.0, comes_back=comes_back)


async def test_who_connects_to_one_that_comes_back_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    connecting = asyncio.ensure_future(server(path, comes_back=True).connect(20.0))
    await asyncio.sleep(0)
    assert not connecting.done()
    listening = await asyncio.start_unix_server(lambda reader, writer: writer.close(), path)
    connection = await connecting
    connection.abort()
    listening.close()


async def test_but_not_longer_than_connecting_may_take(tmp_path: Path) -> None:
    with pytest.raises(ConnectFailed, match=r"no connection within 0\.01 s"):
        await server(tmp_path / "engine.sock", comes_back=True).connect(0.01)


async def test_others_fail_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConnectFailed, match="No such file"):
        await server(tmp_path / "app.sock", comes_back=False).connect(20.0)
