"""An answer whose length is not known when it begins: in chunks, or to HTTP/1.0 until the connection closes.

Owns its framing. The head leaves when it begins, in one write with what follows in the same turn of the loop; an answer
that broke off never looks complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from engine.http import head
from engine.http.message import Request


class Outlet(Protocol):
    """The connection that it goes to."""

    def send(self, data: bytes) -> None:
        """Write; nothing once the client has left."""
        ...

    async def put(self, data: bytes) -> None:
        """Write; wait while the client takes less than it is sent. Raises ConnectionError once it has left."""
        ...

    def abort(self) -> None:
        """End the connection so that nobody can take the answer for complete."""
        ...


class Stream:
    """One answer."""

    __slots__ = ("_chunked", "_outlet", "_silent", "ended")

    def __init__(self, outlet: Outlet, request: Request, headers: Mapping[str, str]) -> None:
        self._outlet = outlet
        self._chunked = request.version == "1.1"
        self._silent = request.method == "HEAD"
        self.ended = False
        if not self._chunked:
            request.keep_alive = False
        framing = "Transfer-Encoding: chunked\r\n" if self._chunked else ""
        connection = head.connection_line(request.version, request.keep_alive)
        outlet.send(head.render(200, framing, headers, connection))

    async def write(self, data: bytes) -> None:
        """Send a piece. Raises ConnectionError once the client has left."""
        await self._outlet.put(self._framed(data))

    async def end(self, data: bytes = b"") -> None:
        """Send the last piece, and the end with it."""
        framed = self._framed(data)
        self.ended = True
        await self._outlet.put(framed + b"0\r\n\r\n" if self._chunked and not self._silent else framed)

    def abort(self) -> None:
        """The head is out: an error answer would land inside the open body, and a clean end would look complete."""
        self._outlet.abort()

    def _framed(self, data: bytes) -> bytes:
        if self._silent or not data:
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
