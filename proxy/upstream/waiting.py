"""Requests that wait for a connection to one server: the urgent first, a bounded number, for a bounded time.

Of equal urgency, first come, first served. When the line is full, whoever is more urgent than somebody in it takes the
place of the last of the least urgent, who is refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

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


RANKS: Final = {"high": 0, "normal": 1, "low": 2}  # by priority: the lower ones come first
NORMAL: Final = 1

#: What who waits is given: a connection, or None: the place of one that ended.
Given = UpstreamConnection | None


class Waiting:
    """The line, one for each rank. hand_on: takes what was given to a request that has left by then."""

    __slots__ = ("_bounds", "_hand_on", "_lines")

    def __init__(self, bounds: Bounds, hand_on: Callable[[Given], None]) -> None:
        self._bounds = bounds
        self._hand_on = hand_on
        self._lines: tuple[deque[asyncio.Future[Given]], ...] = tuple(deque() for _ in RANKS)

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    async def wait(self, rank: int = NORMAL) -> Given:
        """Join the line; what was given. rank: of RANKS. Raises ServerFull."""
        bounds = self._bounds
        if len(self) >= bounds.pending and not self._displace(rank):
            raise ServerFull(
                f"all {bounds.max_connections} connections to it (max_connections) are in use, "
                f"and {bounds.pending} requests wait for one already (pending)",
                "pending",
                max(1.0, bounds.pending_timeout_s),
            )
        turn: asyncio.Future[Given] = asyncio.get_running_loop().create_future()
        line = self._lines[rank]
        line.append(turn)
        try:
            async with asyncio.timeout(bounds.pending_timeout_s):
                return await turn
        except BaseException as error:
            if turn in line:
                line.remove(turn)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self._hand_on(turn.result())
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
        for line in self._lines:
            while line:
                turn = line.popleft()
                if not turn.done():
                    turn.set_result(given)
                    return True
        return False

    def _displace(self, rank: int) -> bool:
        """Refuse the last of the least urgent of the line, if there is one less urgent than ``rank``."""
        bounds = self._bounds
        for line in reversed(self._lines[rank + 1 :]):
            while line:
                turn = line.pop()
                if not turn.done():
                    turn.set_exception(
                        ServerFull(
                            f"all {bounds.max_connections} connections to it (max_connections) are in use, and a more "
                            f"urgent request took the place among the {bounds.pending} that wait (pending)",
                            "pending",
                            max(1.0, bounds.pending_timeout_s),
                        )
                    )
                    return True
        return False
