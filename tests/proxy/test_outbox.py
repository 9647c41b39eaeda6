"""Writes of one turn leave at its end, in order, and a lost connection takes no other's with it."""

from __future__ import annotations

import asyncio

from proxy.outbox import Outbox, outbox_of


class Transport:
    def __init__(self, name: str, log: list[tuple[str, bytes]], *, error: Exception | None = None) -> None:
        self._name, self._log, self._error = name, log, error
        self.aborted = False

    def write(self, data: bytes) -> None:
        if self._error is not None:
            raise self._error
        self._log.append((self._name, data))

    def abort(self) -> None:
        self.aborted = True


async def test_writes_leave_at_the_end_of_the_turn_in_order() -> None:
    log: list[tuple[str, bytes]] = []
    outbox = Outbox()
    a, b = Transport("a", log), Transport("b", log)
    outbox.post(a, b"1")
    outbox.post(b, b"2")
    outbox.post(a, b"3")
    assert log == []
    await asyncio.sleep(0)
    assert log == [("a", b"1"), ("b", b"2"), ("a", b"3")]
    outbox.post(b, b"4")
    await asyncio.sleep(0)
    assert log[-1] == ("b", b"4")


async def test_flush_writes_at_once_and_only_once() -> None:
    log: list[tuple[str, bytes]] = []
    outbox = Outbox()
    outbox.post(Transport("a", log), b"1")
    outbox.flush()
    assert log == [("a", b"1")]
    await asyncio.sleep(0)
    assert log == [("a", b"1")]


async def test_a_lost_connection_takes_nobody_elses_write_with_it() -> None:
    log: list[tuple[str, bytes]] = []
    outbox = Outbox()
    outbox.post(Transport("gone", log, error=RuntimeError("the transport is closed")), b"1")
    outbox.post(Transport("here", log), b"2")
    await asyncio.sleep(0)
    assert log == [("here", b"2")]


async def test_one_connections_fault_costs_the_others_nothing() -> None:
    log: list[tuple[str, bytes]] = []
    outbox = Outbox()
    faulty = Transport("faulty", log, error=OSError("no buffer space"))
    outbox.post(faulty, b"1")
    outbox.post(Transport("here", log), b"2")
    await asyncio.sleep(0)
    assert log == [("here", b"2")]
    assert faulty.aborted


async def test_a_loop_has_one_outbox() -> None:
    loop = asyncio.get_running_loop()
    assert outbox_of(loop) is outbox_of(loop)
