"""The connections to one server: how to make one, which are kept for the next request, and how many there may be.

Owns connecting (TCP, TLS, unix socket; bounded in time; the addresses of a name in turn), the idle connections (the one
used last is used next, a bounded number is kept, each for a bounded time that should stay below the server's own) and
the bounds: beyond ``max_connections`` a request waits for one that is given back or ends. Knows nothing of requests;
which server takes one is decided by ``proxy.upstream.pool``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import cast

from proxy.cells import Cells
from proxy.upstream.addresses import Addresses
from proxy.upstream.metrics import ServerMetrics
from proxy.upstream.resolver import Resolver, Unresolved
from proxy.upstream.state import ServerState
from proxy.upstream.transport import UpstreamConnection
from proxy.upstream.waiting import NORMAL, Bounds, ConnectFailed, Given, ServerFull, Waiting

__all__ = ["Address", "Bounds", "ConnectFailed", "Server", "ServerFull", "parse_address"]

_SHUTDOWN_S = 2.0
_REPLACED_S = 0.1  # how often one that is being replaced is asked whether it is back


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: ``path`` of a unix socket, or host and port; ``server_name`` for TLS."""

    path: str | None = None
    host: str = ""
    port: int = 0
    server_name: str | None = None


def parse_address(server: str, server_name: str | None) -> tuple[Address, bool]:
    """(address, whether TLS) of ``http://HOST:PORT``, ``https://HOST`` or ``unix:/PATH``. Raises ValueError."""
    scheme, _, rest = server.partition(":")
    if scheme == "unix":
        return Address(path=rest), False
    tls = scheme == "https"
    host, colon, port = rest.removeprefix("//").rpartition(":")
    if not colon or port.endswith("]"):
        host, port = rest.removeprefix("//"), "443" if tls else "80"
    if not port.isdigit() or not 0 < int(port) < 65536 or not host:
        raise ValueError(f"{server!r} has no host and port")
    host = host.removeprefix("[").removesuffix("]")
    return Address(host=host, port=int(port), server_name=(server_name or host) if tls else None), tls


class Server:
    """One server of an upstream. ``state`` is what the pool chooses by. resolver: of a name; None: ``address`` needs
    none. comes_back: when it ends another takes its place, so who connects meanwhile waits, as long as connecting may
    take."""

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None,
        state: ServerState,
        *,
        max_idle: int,
        keep_alive_s: float,
        bounds: Bounds | None = None,
        resolver: Resolver | None = None,
        metrics: ServerMetrics | None = None,
        comes_back: bool = False,
    ) -> None:
        self.address = address
        self.state = state
        self.metrics = metrics if metrics is not None else ServerMetrics(Cells(), "", state.name)
        self.resolver = resolver
        if resolver is not None:
            resolver.changed = self.drop_moved
        self.addresses = resolver.addresses if resolver else Addresses([address.path or address.host])
        self._tls = tls
        self._max_idle = max_idle
        self._keep_alive_s = keep_alive_s
        self._bounds = bounds if bounds is not None else Bounds()
        self._idle: deque[UpstreamConnection] = deque()
        self._at: dict[UpstreamConnection, str] = {}  # those that hold a place, and their addresses
        self._num_places = 0  # taken: by connections, and by those who are about to make one
        self._waiting = Waiting(self._bounds, self._hand_on)
        self._closed = False
        self._comes_back = comes_back
        self.reason = ""  # why its last check was a bad one

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def statistics(self, now: float) -> dict[str, object]:
        """What an operator wants to know of it."""
        state = self.state
        numbers: dict[str, object] = {
            "up": state.up,
            "ejected": state.ejected_until > now,
            "ejections": state.num_ejections,
            "cooling": state.left_out_until > max(now, state.ejected_until),
            "in_flight": state.in_flight,
            "connections": self._num_places,
            "idle": len(self._idle),
            "pending": len(self._waiting),
        }
        if self.reason:
            numbers["reason"] = self.reason
        if self.resolver is not None:
            numbers["addresses"] = ", ".join(self.addresses.all) or f"none: {self.resolver.problem}"
        return numbers

    def take(self) -> UpstreamConnection | None:
        """An idle connection, the one used last, or None."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.is_open:
                if not idle and self._num_places >= self._bounds.max_connections:
                    self.state.full = True
                return connection
        return None

    def give_back(self, connection: UpstreamConnection, now: float) -> None:
        """End an exchange on a connection; it is kept if it can carry another, and closed if not."""
        if not connection.finish():
            return
        if self._closed or self._at.get(connection) not in self.addresses.all:
            connection.abort()
        else:
            self._keep(connection, now)

    def _keep(self, connection: UpstreamConnection, now: float) -> None:
        state = self.state
        if state.full and self._waiting.give(connection):
            return
        if len(self._idle) >= self._max_idle:
            connection.abort()
            return
        connection.idle_since = now
        self._idle.append(connection)
        state.full = False

    async def connect(self, timeout_s: float, rank: int = NORMAL) -> UpstreamConnection:
        """A connection, ready for a request: a new one, or one that another request gave back while this one waited.
        rank: who waits behind whom (``waiting.RANKS``). Raises ConnectFailed, or ServerFull."""
        while True:
            if self._num_places < self._bounds.max_connections or self._evict():
                self._take_place()
                break
            given = await self._wait(rank)
            if given is None:
                break
            if given.is_open:
                return given
        try:
            connection = await self.dial(timeout_s, self._lost)
        except BaseException:
            self.metrics.connect_failures.add()
            self._free_place()
            raise
        self.metrics.connects.add()
        if connection not in self._at:
            raise ConnectFailed("it closed the connection at once")
        return connection

    async def dial(self, timeout_s: float, on_lost: Callable[[UpstreamConnection], None]) -> UpstreamConnection:
        """A new connection to the next address that takes one, beside the bounds. Raises ConnectFailed."""
        try:
            async with asyncio.timeout(timeout_s):
                if self.resolver is not None:
                    await self.resolver.ready()
                until = monotonic() + timeout_s
                *others, last = self.addresses.turn()
                for number, address in enumerate(others):
                    # An address that swallows everything shall leave time for the next one.
                    share_s = (until - monotonic()) / (len(others) + 1 - number)
                    try:
                        async with asyncio.timeout(share_s):
                            return await self.dial_address(address, timeout_s, on_lost)
                    except OSError:
                        continue
                while True:
                    try:
                        return await self.dial_address(last, timeout_s, on_lost)
                    except (ConnectionRefusedError, FileNotFoundError):
                        if not self._comes_back:
                            raise
                    await asyncio.sleep(_REPLACED_S)
        except Unresolved as unknown:
            raise ConnectFailed(str(unknown)) from None
        except TimeoutError:
            raise ConnectFailed(f"no connection within {timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as untrusted:
            raise ConnectFailed(f"its certificate is not accepted: {untrusted.verify_message}") from None
        except ssl.SSLError as refused:
            raise ConnectFailed(f"the TLS handshake failed: {refused.reason or refused}") from None
        except OSError as error:
            raise ConnectFailed(error.strerror or str(error) or type(error).__name__) from None

    async def dial_address(
        self, where: str, timeout_s: float, on_lost: Callable[[UpstreamConnection], None] | None = None
    ) -> UpstreamConnection:
        """A new connection to one address. Raises OSError; nothing is left when it does."""
        loop = asyncio.get_running_loop()
        address = self.address
        connection = UpstreamConnection(on_lost)
        protocol = cast(Callable[[], asyncio.BufferedProtocol], lambda: connection)
        if on_lost is not None:
            self._at[connection] = where
        try:
            if address.path is not None:
                await loop.create_unix_connection(protocol, where)
            elif self._tls is None:
                await loop.create_connection(protocol, where, address.port)
            else:
                await loop.create_connection(
                    protocol,
                    where,
                    address.port,
                    ssl=self._tls,
                    server_hostname=address.server_name,
                    ssl_handshake_timeout=timeout_s,
                    ssl_shutdown_timeout=_SHUTDOWN_S,
                )
        except BaseException as error:
            self._at.pop(connection, None)
            connection.abort()  # it may have been made in the very turn in which this was cancelled
            if isinstance(error, OSError | asyncio.CancelledError):
                self.addresses.told(where, False)
            raise
        self.addresses.told(where, True)
        return connection

    # Places

    async def _wait(self, rank: int) -> Given:
        self.metrics.pending.add(1.0)
        try:
            return await self._waiting.wait(rank)
        except ServerFull as error:
            self.metrics.refused[error.limit].add()
            raise
        finally:
            self.metrics.pending.add(-1.0)

    def _take_place(self) -> None:
        self._num_places += 1
        self.metrics.connections.add(1.0)
        if not self._idle and self._num_places >= self._bounds.max_connections:
            self.state.full = True

    def _drop_place(self) -> None:
        self._num_places -= 1
        self.metrics.connections.add(-1.0)
        self.state.full = False

    def _hand_on(self, given: Given) -> None:
        """Who was given this has left."""
        if given is None:
            self._free_place()
        elif given.is_open:
            self._keep(given, monotonic())

    def _lost(self, connection: UpstreamConnection) -> None:
        """A connection that held a place is no more."""
        if self._at.pop(connection, None) is not None:
            self._free_place()

    def _free_place(self) -> None:
        if not self._waiting.give(None):  # else the place has a new holder
            self._drop_place()

    def _evict(self) -> bool:
        """End the oldest idle connection for one that must be new."""
        if not self._idle:
            return False
        connection = self._idle.popleft()
        if self._at.pop(connection, None) is not None:
            self._drop_place()
        connection.abort()
        return self._num_places < self._bounds.max_connections

    # Time and change

    def start(self) -> None:
        """Serve in the snapshot in use."""
        self.metrics.up.set(float(self.state.up))

    def drop_old(self, now: float) -> None:
        """Close idle connections whose time is up; the oldest are first in line."""
        idle = self._idle
        while idle and (not idle[0].is_open or now - idle[0].idle_since > self._keep_alive_s):
            idle.popleft().abort()

    def drop_moved(self) -> None:
        """Close idle connections to addresses that the name no longer has; those in use end when given back."""
        there = self.addresses.all
        moved = [connection for connection in self._idle if self._at.get(connection) not in there]
        for connection in moved:
            self._idle.remove(connection)
            connection.abort()

    def close(self) -> None:
        """Close what is idle, now and when it becomes idle: the server is no longer configured."""
        self._closed = True
        self.metrics.up.set(0.0)
        while self._idle:
            self._idle.pop().abort()
