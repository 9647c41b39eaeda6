"""The connections to one server: how to make one, and which are kept for the next request.

Owns connecting (TCP, TLS, unix socket; bounded in time) and the idle connections: the one used last is used next, a
bounded number is kept, each for a bounded time that should stay below the server's own. Knows nothing of requests;
which server takes one is decided by ``proxy.upstream.pool``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass

from proxy.upstream.pool import ServerState
from proxy.upstream.transport import UpstreamConnection

_SHUTDOWN_S = 2.0


class ConnectFailed(Exception):
    """No connection to the server; nothing was sent. The message says why, without secrets."""


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
    """One address of an upstream. ``state`` is what the pool chooses by."""

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, state: ServerState, *, max_idle: int, keep_alive_s: float
    ) -> None:
        self.address = address
        self.state = state
        self._tls = tls
        self._max_idle = max_idle
        self._keep_alive_s = keep_alive_s
        self._idle: deque[UpstreamConnection] = deque()
        self._closed = False

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def take(self) -> UpstreamConnection | None:
        """An idle connection, the one used last, or None."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.is_open:
                return connection
        return None

    def give_back(self, connection: UpstreamConnection, now: float) -> None:
        """End an exchange on a connection; it is kept if it can carry another, and closed if not."""
        if not connection.finish():
            return
        if self._closed or len(self._idle) >= self._max_idle:
            connection.abort()
            return
        connection.idle_since = now
        self._idle.append(connection)

    async def connect(self, timeout_s: float) -> UpstreamConnection:
        """A new connection, ready for a request. Raises ConnectFailed."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._connect(timeout_s)
        except TimeoutError:
            raise ConnectFailed(f"no connection within {timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise ConnectFailed(f"its certificate is not accepted: {error.verify_message}") from None
        except ssl.SSLError as error:
            raise ConnectFailed(f"the TLS handshake failed: {error.reason or error}") from None
        except OSError as error:
            raise ConnectFailed(error.strerror or str(error) or type(error).__name__) from None

    async def _connect(self, timeout_s: float) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        address = self.address
        connection = UpstreamConnection()
        try:
            if address.path is not None:
                await loop.create_unix_connection(lambda: connection, address.path)
            elif self._tls is None:
                await loop.create_connection(lambda: connection, address.host, address.port)
            else:
                await loop.create_connection(
                    lambda: connection,
                    address.host,
                    address.port,
                    ssl=self._tls,
                    server_hostname=address.server_name,
                    ssl_handshake_timeout=timeout_s,
                    ssl_shutdown_timeout=_SHUTDOWN_S,
                )
        except BaseException:
            connection.abort()  # it may have been made in the very turn in which this was cancelled
            raise
        return connection

    def drop_old(self, now: float) -> None:
        """Close idle connections whose time is up; the oldest are first in line."""
        idle = self._idle
        while idle and (not idle[0].is_open or now - idle[0].idle_since > self._keep_alive_s):
            idle.popleft().abort()

    def close(self) -> None:
        """Close what is idle, now and when it becomes idle: the server is no longer configured."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()
