"""How much one read of a client may bring: more of a large body while none of it waits here."""

from __future__ import annotations

import asyncio
from typing import Any

from proxy import downstream
from proxy.downstream import ClientConnection
from proxy.edge_server import EdgeServer
from tests.proxy.make import proxy_config
from tests.proxy.test_downstream_contract import Transport


class Relaying:
    """A Watcher that passes all on, unless it is stuck."""

    stuck = False

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def gone(self) -> None: ...

    def took_all(self) -> bool:
        return not self.stuck


async def reading(scheme: str) -> tuple[ClientConnection, Relaying, asyncio.Task[bytes]]:
    """A connection, some of whose request's body has come and gone, and whose relay waits for more of it."""
    bodies: list[Any] = []
    limits = proxy_config().listeners[0].limits
    connection = ClientConnection(
        EdgeServer(lambda _client, _message, body: bodies.append(body), limits, scheme=scheme)
    )
    connection.connection_made(Transport())
    connection.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nbeginning")
    connection.watcher = relaying = Relaying()
    assert bodies[0].take() == b"beginning"
    task = asyncio.create_task(bodies[0].read())
    await asyncio.sleep(0)
    return connection, relaying, task


async def test_more_of_an_upload_is_read_at_once_while_the_upstream_takes_all() -> None:
    connection, relaying, task = await reading("http")
    assert len(connection.get_buffer(-1)) == downstream.LARGE_READ_BYTES
    relaying.stuck = True
    assert len(connection.get_buffer(-1)) == downstream.READ_BYTES
    relaying.stuck = False
    piece = b"x" * downstream.LARGE_READ_BYTES
    connection.get_buffer(-1)[:] = piece
    connection.buffer_updated(len(piece))
    assert await task == piece
    assert len(connection.get_buffer(-1)) == downstream.READ_BYTES  # it is being sent


async def test_over_tls_no_more_of_an_upload_is_read_at_once() -> None:
    connection, _, task = await reading("https")
    assert len(connection.get_buffer(-1)) == downstream.READ_BYTES
    task.cancel()
