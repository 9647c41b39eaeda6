"""The body of a request on its way in: pieces as they come, and whoever waits for them.

A large one is better read into the place where it is to lie: for each megabyte that spares two copies. Owns that nobody
who does not take it has more than BEHIND_BYTES of it kept: then the connection is not read.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from engine.errors import Kind, RequestError

#: Of a body that nobody takes. With less, a megabyte is stopped many times: a quarter more work.
BEHIND_BYTES: Final = 512 << 10


class Source(Protocol):
    """The connection that it comes from."""

    def proceed(self) -> None:
        """Somebody waits for the body: a client that asked first may send it (100 Continue, RFC 9110 10.1.1)."""
        ...

    def pause(self) -> None:
        """Read no more for now."""
        ...

    def resume(self) -> None:
        """Read on."""
        ...

    def read_into(self, rest: memoryview) -> None:
        """What still comes of the body goes there."""
        ...


class Incoming:
    """One body. ``complete``: all of it has come; ``length``: in bytes, None: not known until then."""

    __slots__ = (
        "_broken",
        "_num_behind",
        "_num_landed",
        "_paused",
        "_pieces",
        "_source",
        "_waiter",
        "complete",
        "length",
    )

    def __init__(self, source: Source, length: int | None) -> None:
        self._source = source
        self._pieces: list[bytes] = []
        self._num_behind = self._num_landed = 0
        self._paused = False
        self._broken: str | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.length = length
        self.complete = False

    def take(self) -> list[bytes]:
        """What has come since the last call."""
        pieces, self._pieces, self._num_behind = self._pieces, [], 0
        if self._paused:
            self._paused = False
            self._source.resume()
        return pieces

    def into(self, rest: memoryview) -> None:
        """What still comes goes there; all that has come before was taken. rest: as long as what is missing of
        ``length``."""
        self._source.read_into(rest)

    def take_landed(self) -> int:
        """How many bytes have come there since the last call."""
        num_landed, self._num_landed = self._num_landed, 0
        return num_landed

    async def wait(self) -> None:
        """Until something has come, or it is complete. Raises RequestError (400) for what broke off before that."""
        self._check()
        if self._pieces or self._num_landed or self.complete:
            return
        self._source.proceed()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        self._check()

    # What the connection tells.

    def feed(self, piece: bytes) -> None:
        """A piece has come."""
        self._pieces.append(piece)
        self._num_behind += len(piece)
        if self._waiter is not None:
            self._wake()
        elif self._num_behind > BEHIND_BYTES and not self._paused:
            self._paused = True
            self._source.pause()

    def land(self, num_bytes: int) -> None:
        """So much has come to where ``into`` said."""
        self._num_landed += num_bytes
        self._wake()

    def end(self) -> None:
        """All of it has come."""
        self.complete = True
        self._wake()

    def fail(self, why: str) -> None:
        """Nothing more of it comes."""
        self._broken = why
        self._wake()

    def _check(self) -> None:
        if self._broken is not None:  # an error that is kept would hold whom it was raised in, and they hold this
            raise RequestError(Kind.INVALID, f"the body cannot be read: {self._broken}")

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
