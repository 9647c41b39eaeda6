"""A child's line to its supervisor: heartbeats, orders, and the ends of both."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from appliance import link as link_module
from appliance.control import Channel, Message
from appliance.link import Link


class Supervisor:
    """The other end."""

    def __init__(self, sock: socket.socket) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.channel = Channel(sock, lambda message, fds: self.messages.put_nowait(message), lambda: None)


@pytest.fixture
async def ends() -> Iterator[tuple[Supervisor, Link]]:
    ours, theirs = socket.socketpair()
    supervisor, link = Supervisor(ours), Link(theirs)
    yield supervisor, link
    supervisor.channel.close()
    link.close()


async def test_it_beats_or_says_why_not(ends: tuple[Supervisor, Link], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "BEAT_S", 0.0)
    supervisor, link = ends
    reports = iter([(None, {"open": 1}), ("stuck", {})])
    link.start_beating(lambda: next(reports))
    heard = [await supervisor.messages.get() for _ in range(3)]
    assert heard[0] == {"type": "beat", "statistics": {"open": 1}}
    assert heard[1] == {"type": "trouble", "reason": "stuck", "statistics": {}}
    assert heard[2]["reason"].startswith("cannot tell how it is")


async def test_the_supervisors_death_is_an_order_to_drain_shortly(ends: tuple[Supervisor, Link]) -> None:
    supervisor, link = ends
    supervisor.channel.close()
    message, _ = await link.inbox.get()
    assert message == {"type": "drain", "limit_s": link_module.ORPHAN_DRAIN_S}


async def test_a_drain_is_cut_short_when_the_supervisor_dies_in_it(
    ends: tuple[Supervisor, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "ORPHAN_DRAIN_S", 0.01)
    supervisor, link = ends
    limits_s = []

    async def drain(limit_s: float) -> None:
        limits_s.append(limit_s)
        supervisor.channel.close()
        await asyncio.Event().wait()

    await asyncio.wait_for(link.finish(drain, 3600.0), 30)
    assert limits_s == [3600.0]


async def test_a_drain_that_ends_is_waited_for(ends: tuple[Supervisor, Link]) -> None:
    _, link = ends
    ended = []

    async def drain(limit_s: float) -> None:
        await asyncio.sleep(0)
        ended.append(limit_s)

    await link.finish(drain, 5.0)
    assert ended == [5.0]
