"""A child's line to its supervisor: what it is told, in order, and what it tells; heartbeats; and the line's end.

The supervisor's death (the channel ends) and a stray SIGTERM come in as orders to drain, so a role knows one way out.
Knows nothing of what a role does with its orders.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from appliance.control import Channel, Message

BEAT_S = 1.0
ORPHAN_DRAIN_S = 5.0
TERM_DRAIN_S = 30.0

#: (None or what is wrong, numbers for the status page).
Report = Callable[[], tuple[str | None, dict[str, Any]]]


class Link:
    """Made on the running loop. ``inbox`` holds (message, descriptors), which the reader owns."""

    def __init__(self, sock: socket.socket) -> None:
        self.inbox: asyncio.Queue[tuple[Message, list[int]]] = asyncio.Queue()
        self._orphaned = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._channel = Channel(sock, lambda message, fds: self.inbox.put_nowait((message, fds)), self._lost)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._order_drain, TERM_DRAIN_S)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the terminal's Ctrl-C is for the supervisor

    def tell(self, kind: str, **facts: Any) -> None:
        """Tell the supervisor."""
        self._channel.send({"type": kind, **facts})

    def start_beating(self, report: Report) -> None:
        """Tell from now on that this loop turns; or, instead of a heartbeat, what is wrong."""
        self._beating = asyncio.create_task(self._beat(report))

    async def finish(self, drain: Callable[[float], Awaitable[object]], limit_s: float) -> None:
        """Drain within ``limit_s``, or within ORPHAN_DRAIN_S once nobody supervises it."""
        draining = asyncio.ensure_future(drain(limit_s))
        orphaned = asyncio.ensure_future(self._orphaned.wait())
        await asyncio.wait({draining, orphaned}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({draining}, timeout=ORPHAN_DRAIN_S)
        orphaned.cancel()
        if not draining.done():
            draining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await draining

    def close(self) -> None:
        """Say and hear nothing more."""
        if self._beating is not None:
            self._beating.cancel()
        self._channel.close()

    async def _beat(self, report: Report) -> None:
        while True:
            try:
                trouble, statistics = report()
            except Exception as error:
                trouble, statistics = f"cannot tell how it is: {error!r}", {}
            if trouble is None:
                self.tell("beat", statistics=statistics)
            else:
                self.tell("trouble", reason=trouble, statistics=statistics)
            await asyncio.sleep(BEAT_S)

    def _lost(self) -> None:
        self._orphaned.set()
        self._order_drain(ORPHAN_DRAIN_S)

    def _order_drain(self, limit_s: float) -> None:
        self.inbox.put_nowait(({"type": "drain", "limit_s": limit_s}, []))
