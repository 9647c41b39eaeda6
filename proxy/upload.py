"""A request body on its way upstream: piece by piece, and once more if the attempt is repeated.

Owns the upstream framing of request bodies and the bounded copy that makes a repetition possible. Back-pressure runs
through it: a piece is taken from the client only when the upstream has room. Decides nothing about retries.
"""

from __future__ import annotations

from typing import Final

from proxy.body import BodyBroken, RequestBody
from proxy.errors import refuse, too_large
from proxy.exchange import Ending, Exchange, Reply
from proxy.relay import Relay

HELD_BYTES: Final = 1 << 20


class TooLarge(Exception):
    """The body has grown over the route's limit."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.limit_bytes = limit_bytes


class Upload:
    """holds: keep a copy of what was taken, up to HELD_BYTES, for another attempt."""

    __slots__ = ("_body", "_chunked", "_held", "_taken", "_x")

    def __init__(self, x: Exchange, body: RequestBody, *, holds: bool) -> None:
        self._x = x
        self._body = body
        self._chunked = x.content_length is None
        self._held: list[bytes] | None = [] if holds else None
        self._taken = False

    @property
    def replayable(self) -> bool:
        """Another attempt can send all of the body again."""
        return self._held is not None or not self._taken or self._read() is not None

    @property
    def complete(self) -> bool:
        """All of it was received: it can go out with the head."""
        return self._body.complete or self._read() is not None

    def whole(self) -> bytes:
        """The complete body, framed. Raises BodyBroken, and TooLarge over the route's limit."""
        read = self._read()
        if read is not None:
            return read
        held = b"".join(self._held) if self._held else b""
        body = held + self._take(self._body.take())
        if not self._chunked:
            return body
        return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"

    async def pump(self, relay: Relay) -> None:
        """Send the body as it comes. A body that breaks off ends the exchange through ``relay``."""
        try:
            for piece in tuple(self._held or ()):
                await relay.upload(self._framed(piece))
            while piece := self._take(await self._body.read()):
                await relay.upload(self._framed(piece))
            if self._chunked:
                await relay.upload(b"0\r\n\r\n")
            relay.uploading = False
        except (BodyBroken, TooLarge) as error:
            relay.refuse_body(*self.refused(error))
        except Exception as fault:
            if relay.outcome is None:  # else it is over: who left can be read from no more
                relay.broke(fault)

    def refused(self, error: BodyBroken | TooLarge) -> tuple[Ending, Reply]:
        """How an exchange ends whose body cannot be sent."""
        if isinstance(error, TooLarge):
            return Ending.REFUSED, too_large(self._x, error.limit_bytes)
        kind, message = error.refusal
        return Ending.CLIENT_ERROR, refuse(self._x, kind, message, close=True)

    def _read(self) -> bytes | None:
        """What a policy has read of it, which is all of it, or what it put in its place: of a length that is known."""
        body = self._x.body
        return None if body is None else body.data

    def _framed(self, piece: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece

    def _take(self, piece: bytes) -> bytes:
        if not piece:
            return piece
        x = self._x
        self._taken = True
        x.bytes_in += len(piece)
        if x.body_limit_bytes is not None and x.bytes_in > x.body_limit_bytes:
            raise TooLarge(x.body_limit_bytes)
        if self._held is not None:
            self._held.append(piece)
            if x.bytes_in > HELD_BYTES:
                self._held = None
        return piece
