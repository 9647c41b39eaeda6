"""Requests that wait for a connection to one server: first come, first served, a bounded number, for a bounded time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from proxy.upstream.transport import UpstreamConnection


class ConnectFailed(Exception):
    """No connection to the server; nothing was sent. The message says why, without secrets."""


class ServerFull(ConnectFailed):
    """The server's bounds on connections and waiting requests are reached, which is no fault of it. limit: which one.
    Come back after ``retry_after_s``."""

    def __init__(self, message: str, limit: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.limit = limit
        self.retry_after_s = retry_after_s


class Bounds(NamedTuple):
    """max_connections: open at once. pending: requests that may wait for one, each for ``pending_timeout_s``."""

    max_connections: int = 10000
    pending: int = 1000
    pending_timeout_s: float = 5.0


#: What who waits is given: a connection, or None: the place of one that ended.
Given = UpstreamConnection | None


class Waiting:
    """The line. hand_on: takes what was given to a request that has left by then."""

    __slots__ = ("_bounds", "_hand_on", "_line")

    def __init__(self, bounds: Bounds, hand_on: Callable[[Given], None]) -> None:
        self._bounds = bounds
        self._hand_on = hand_on
        self._line: deque[asyncio.Future[Given]] = deque()

    def __len__(self) -> int:
        return len(self._line)

    async def wait(self) -> Given:
        """Join the line; what was given. Raises ServerFull."""
        bounds = self._bounds
        if len(self._line) >= bounds.pending:
            raise ServerFull(
                f"all {bounds.max_connections} connections to it (max_connections) are in use, "
                f"and {bounds.pending} requests wait for one already (pending)",
                "pending",
                max(1.0, bounds.pending_timeout_s),
            )
        turn: asyncio.Future[Given] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            async with asyncio.timeout(bounds.pending_timeout_s):
                return await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._hand_on(turn.result())
            elif turn in self._line:
                self._line.remove(turn)
            if not isinstance(error, TimeoutError):
                raise
            raise ServerFull(
                f"none of its {bounds.max_connections} connections (max_connections) became free within "
                f"{bounds.pending_timeout_s:g} s (pending_timeout)",
                "pending_timeout",
                max(1.0, bounds.pending_timeout_s),
            ) from None

    def give(self, given: Given) -> bool:
        """Give to who waits longest; False: nobody waits."""
        line = self._line
        while line:
            turn = line.popleft()
            if not turn.done():
                turn.set_result(given)
                return True
        return False
