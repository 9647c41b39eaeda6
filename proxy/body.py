"""The body of one request, as its client sends it: pieces, and why it broke off.

Owns the reading side of an upload. Pieces are read by one reader at a time; at most two read buffers wait here before
the client is paused. Knows neither sinks nor upstreams.
"""

from __future__ import annotations

import time

from aiohttp.streams import StreamReader

from proxy.gate import Refusal


class BodyBroken(Exception):
    """The body is malformed or did not come in time; ``refusal`` says so to the client."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class RequestBody:
    """``complete`` once the last byte was received, read or not. ``waiting_since`` is 0.0 unless someone waits."""

    __slots__ = ("payload", "waiting_since")

    def __init__(self, payload: StreamReader) -> None:
        self.payload = payload
        self.waiting_since = 0.0

    @property
    def complete(self) -> bool:
        return self.payload.is_eof()

    async def read(self) -> bytes:
        """The next piece, b"" at the end. Raises BodyBroken."""
        self.waiting_since = time.monotonic()
        try:
            return await self.payload.readany()
        finally:
            self.waiting_since = 0.0

    def take(self) -> bytes:
        """All that was received and not read yet, without waiting. Raises BodyBroken."""
        return self.payload.read_nowait()

    @property
    def received_bytes(self) -> int:
        """Bytes of the body received so far, decoded from their chunks."""
        return self.payload.total_bytes
