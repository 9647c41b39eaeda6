"""The connections of one listener: which are open, of whom, and how many there may be.

Owns the bounds on connections; what is spoken on them is ``proxy.downstream``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from proxy.body import RequestBody
from proxy.config import ListenerLimits
from proxy.errors import Kind
from proxy.gate import Refusal

if TYPE_CHECKING:
    from proxy.downstream import ClientConnection

Work = Coroutine[Any, Any, None]
#: Answers one message (aiohttp's RawRequestMessage or a Refusal) and calls ``answered`` when that is done; returns what
#: must be awaited for it, if anything.
Serve = Callable[["ClientConnection", Any, RequestBody], Work | None]


class EdgeServer:
    """One listener's connections: how they are served, and how many there may be, in all and of one client."""

    def __init__(
        self,
        serve: Serve,
        limits: ListenerLimits,
        *,
        scheme: str,
        stands_for_many: Callable[[str], bool] = lambda _peer: False,
    ) -> None:
        """scheme: "http" or "https". stands_for_many: whether an address is that of a proxy, whose connections carry
        many clients and are counted against none."""
        self.serve = serve
        self.limits = limits
        self.scheme = scheme
        self.open: set[ClientConnection] = set()
        self._stands_for_many = stands_for_many
        self._num_of: dict[str, int] = {}  # open connections of each client

    def enter(self, connection: ClientConnection) -> Refusal | None:
        """Count a new connection. Returns why it may not stay, if so."""
        limits, client = self.limits, connection.counted_as
        self.open.add(connection)
        self._num_of[client] = num_open = self._num_of.get(client, 0) + 1
        if len(self.open) > limits.connections:
            return Refusal(Kind.CAPACITY, f"the listener's limit of {limits.connections} connections is reached")
        if client and num_open > limits.connections_per_client and not self._stands_for_many(connection.peer):
            text = f"the limit of {limits.connections_per_client} connections of one client is reached"
            return Refusal(Kind.IN_FLIGHT, text)
        return None

    def leave(self, connection: ClientConnection) -> None:
        """Count a connection that is no more."""
        if connection not in self.open:
            return
        self.open.discard(connection)
        client = connection.counted_as
        left = self._num_of[client] - 1
        if left:
            self._num_of[client] = left
        else:
            del self._num_of[client]
