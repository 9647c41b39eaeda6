"""What is written in one turn of the event loop, handed to the kernel together at its end.

A write to a peer that sleeps wakes it, which costs the writer a kick of another processor (on virtual machines a fifth
of all time under load). In a row the first write wakes the peer and the others find it awake. Order is kept, per
transport and in all; whoever closes a transport, or ends its sending, calls ``flush`` first.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final
from weakref import WeakKeyDictionary

log = logging.getLogger("headrace.proxy")

#: So much is held back in all: beyond it what waits goes out at once, so that a slow client's transport says that it is
#: slow before its upstream is read again.
HELD_BYTES: Final = 65536

_outboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, Outbox] = WeakKeyDictionary()


class Outbox:
    """The writes that wait in one event loop; bounded by HELD_BYTES and one piece more."""

    __slots__ = ("_num_bytes", "_waiting")

    def __init__(self) -> None:
        self._num_bytes = 0
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []

    def post(self, transport: asyncio.Transport, data: bytes) -> None:
        """Write ``data`` at the end of this turn, or now if too much waits already."""
        waiting = self._waiting
        if not waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        waiting.append((transport, data))
        self._num_bytes += len(data)
        if self._num_bytes > HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write now what waits."""
        waiting, self._waiting, self._num_bytes = self._waiting, [], 0
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
