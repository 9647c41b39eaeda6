"""What is written in one turn of the event loop, handed to the kernel together at its end.

A write to a peer that sleeps wakes it, which costs the writer a kick of another processor (on virtual machines a fifth
of all time under load). In a row the first write wakes the peer and the others find it awake. Order is kept, per
transport and in all; whoever closes a transport, or ends its sending, calls ``flush`` first.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

_outboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, Outbox] = WeakKeyDictionary()


class Outbox:
    """The writes that wait in one event loop; bounded by what its transports may read in one turn."""

    __slots__ = ("__weakref__", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []

    def post(self, transport: asyncio.Transport, data: bytes) -> None:
        """Write ``data`` at the end of this turn."""
        waiting = self._waiting
        if not waiting:
            self._loop.call_soon(self.flush)
        waiting.append((transport, data))

    def flush(self) -> None:
        """Write now what waits."""
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            try:
                transport.write(data)
            except RuntimeError:  # lost since; its protocol knows
                continue


def outbox_of(loop: asyncio.AbstractEventLoop) -> Outbox:
    """The one outbox of a loop."""
    outbox = _outboxes.get(loop)
    if outbox is None:
        outbox = _outboxes[loop] = Outbox(loop)
    return outbox
