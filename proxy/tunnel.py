"""Two connections joined after a change of protocol: what one sends, the other gets, byte for byte.

Owns the bytes in both directions, their back-pressure, and the end: when one side is lost, or sends no more, both are
closed behind what is still due to them, within a second. Nothing is parsed: what is said in a WebSocket, its pings and
its close codes (RFC 6455) is between its ends. ``check`` is called by the worker's sweep.

All tunnels of a worker share one receive buffer: what is read is handed on in the same call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from proxy.downstream import WRITE_HIGH_BYTES, WRITE_LOW_BYTES
from proxy.kernel import in_kernel, was_reset

#: A side that is being closed and takes nothing for so long is ended, within a second by the sweep; one that takes what
#: is due to it has a little longer.
_CLOSING_S = 0.5
_MAX_CLOSING_S = 10.0
_buffer = memoryview(bytearray(65536))


class Owner(Protocol):
    """Who had a connection before it was joined: told when it is lost."""

    def connection_lost(self, exc: Exception | None) -> None: ...


class _Side(asyncio.BufferedProtocol):
    """One end's connection; ``num_bytes`` were received from it."""

    __slots__ = ("_name", "_owner", "_paused", "_tunnel", "lost", "num_bytes", "other", "transport")

    def __init__(self, name: str, tunnel: Tunnel, transport: asyncio.Transport, owner: Owner) -> None:
        self._name = name
        self._tunnel = tunnel
        self._owner = owner
        self.transport = transport
        self.num_bytes = 0
        self.lost = False
        self._paused = False  # is not read from: the other side does not take what it sends
        self.other = self

    @property
    def is_open(self) -> bool:
        return not self.lost and not self.transport.is_closing()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.hand_on(bytes(_buffer[:nbytes]))

    def hand_on(self, data: bytes) -> None:
        """Give the other side what this one has sent."""
        self._tunnel.heard_at = time.monotonic()
        self.num_bytes += len(data)
        if self.other.is_open:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other.is_open:
            self.other._paused = True
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.is_open:
            self.other._paused = False
            self.other.transport.resume_reading()

    def look(self) -> None:
        """End what was reset while it was not read from."""
        if self._paused and self.is_open and was_reset(self.transport):
            self.transport.abort()

    def eof_received(self) -> bool:
        # The transport closes behind what it has still to write, which its peer may never take: told now.
        self._tunnel.close(f"the {self._name} closed")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._owner.connection_lost(exc)
        self._tunnel.side_lost(f"the {self._name} {'was reset' if isinstance(exc, ConnectionError) else 'closed'}")


class Tunnel:
    """A pair of joined connections. ``heard_at``: monotonic seconds at the last byte from either."""

    def __init__(
        self,
        client: tuple[asyncio.Transport, Owner],
        upstream: tuple[asyncio.Transport, Owner],
        idle_s: float,
        ended: Callable[[Tunnel, str], None],
    ) -> None:
        """ended: told once, with the reason, when both connections are gone."""
        self.heard_at = time.monotonic()
        self.reason = ""
        self._idle_s = idle_s
        self._ended = ended
        self._closing_at = 0.0
        self._taken_at = 0.0  # while closing: when less was due than ever before, and how much
        self._due_bytes = 0
        self._client = _Side("client", self, *client)
        self._upstream = _Side("upstream", self, *upstream)
        self._client.other, self._upstream.other = self._upstream, self._client

    def join(self, from_client: bytes, from_upstream: bytes) -> None:
        """Begin, with what either side has sent ahead."""
        for side in (self._client, self._upstream):
            side.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
            if side.transport.get_extra_info("ssl_object") is not None:
                # While it is paused uvloop reads on to its high-water mark, and forgets what it read when a FIN comes.
                cast(Any, side.transport).set_read_buffer_limits(high=1, low=0)
            side.transport.set_protocol(side)
            if side.is_open:
                side.transport.resume_reading()
        # Only now: what does not go out at once pauses the side that it came from.
        for side, early in ((self._client, from_client), (self._upstream, from_upstream)):
            if early:
                side.hand_on(early)

    @property
    def bytes_in(self) -> int:
        """Bytes that the client sent."""
        return self._client.num_bytes

    @property
    def bytes_out(self) -> int:
        """Bytes that the upstream sent."""
        return self._upstream.num_bytes

    def side_lost(self, how: str) -> None:
        """One of the two is gone: close the other."""
        if self._client.lost and self._upstream.lost:
            self._ended(self, self.reason)
        else:
            self.close(how)

    def close(self, reason: str) -> None:
        """Close both sides behind what is still to be written to them."""
        if not self._closing_at:
            self._closing_at = self._taken_at = time.monotonic()
            self._due_bytes = self._waiting_bytes()
            self.reason = reason
        for side in (self._client, self._upstream):
            if not side.lost:
                side.transport.close()

    def _waiting_bytes(self) -> int:
        """What is still due to the two, here and in the kernel."""
        sides = [side.transport for side in (self._client, self._upstream) if not side.lost]
        return sum([transport.get_write_buffer_size() + in_kernel(transport) for transport in sides])

    def check(self, now: float) -> None:
        """Close what is idle, and end what does not take its last bytes."""
        if self._closing_at:
            due_bytes = self._waiting_bytes()
            if due_bytes < self._due_bytes and now - self._closing_at < _MAX_CLOSING_S:
                self._due_bytes, self._taken_at = due_bytes, now
            elif now - self._taken_at > _CLOSING_S:
                for side in (self._client, self._upstream):
                    if not side.lost:
                        side.transport.abort()
        elif now - self.heard_at > self._idle_s:
            self.close(f"no byte either way for {self._idle_s:g} s")
        else:
            self._client.look()
            self._upstream.look()
