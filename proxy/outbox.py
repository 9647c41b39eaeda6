"""What is written in one turn of the event loop, handed to the kernel together at its end.

A write to a peer that sleeps wakes it, which costs the writer a kick of another processor (on virtual machines a fifth
of all time under load). In a row the first write wakes the peer and the others find it awake. Order is kept, per
transport and in all; whoever closes a transport, or ends its sending, calls ``flush`` first.
"""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakKeyDictionary

log = logging.getLogger("headrace.proxy")

_outboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, Outbox] = WeakKeyDictionary()


class Outbox:
    """The writes that wait in one event loop; bounded by what its transports may read in one turn."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []

    def post(self, transport: asyncio.Transport, data: bytes) -> None:
        """Write ``data`` at the end of this turn."""
        waiting = self._waiting
        if not waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        waiting.append((transport, data))

    def flush(self) -> None:
        """Write now what waits."""
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            try:
                transport.write(data)
            except RuntimeError:  # lost since; its protocol knows
                continue
            except Exception:  # one connection's fault may not cost the others their bytes
                log.exception("a connection could not be written to")
                transport.abort()


def outbox_of(loop: asyncio.AbstractEventLoop) -> Outbox:
    """The one outbox of a loop."""
    outbox = _outboxes.get(loop)
    if outbox is None:
        outbox = _outboxes[loop] = Outbox()
    return outbox
