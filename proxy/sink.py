"""Where an answer goes: ``begin(head)``, ``data(bytes)``, ``end(trailers)`` or ``abort()``. HTTP/1.1 to one client.

Owns the framing of everything that is sent to a client, relayed or made here: it is always made anew from the length
that is known, never copied. The laws: a head is sent once; nothing follows an end; an answer that fell short of its
length, or whose source broke off, never ends but is aborted, so that a truncated answer cannot look complete. A head
waits for the first bytes of its body and leaves with them (or at ``flush``), in one packet and one TLS record.

Knows nothing of policies, routes or upstreams, and of the connection only what ``Client`` says.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from time import time
from typing import Any, Final, Protocol

from proxy.exchange import Head
from proxy.headers import join_head
from proxy.outbox import Outbox

#: From here on a chunk's frame and payload are handed over as they are; below it, one small copy is cheaper.
_JOIN_BYTES: Final = 8192
#: Fields that steer framing, routing, authentication or caching are refused as trailers (RFC 9110 §6.5.1).
_NOT_IN_TRAILERS: Final = frozenset(
    b"transfer-encoding content-length content-encoding content-type content-range host connection trailer te upgrade"
    b" keep-alive cache-control expires age vary set-cookie authorization www-authenticate location retry-after".split()
)
_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
#: Framing; _NONE: no body.
_NONE: Final = 0
_LENGTH: Final = 1
_CHUNKED: Final = 2
_CLOSE: Final = 3


class Watcher(Protocol):
    """Who relays an answer to a client."""

    def pause(self) -> None:
        """The client reads slower than it is written to."""

    def resume(self) -> None:
        """It has caught up."""

    def gone(self) -> None:
        """The connection is lost; nothing may be written to it any more."""

    def took_all(self) -> bool:
        """All that was read of the client's body has gone on: none of it waits here."""
        return False


class Client:
    """What a sink, and whoever forwards, needs of the connection. ``watcher``: who must hear that the client is slow or
    gone. ``writing_paused``: it reads slower than it is written to."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.transport: asyncio.Transport | None = None
        self.watcher: Watcher | None = None
        self.writing_paused = False

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something awaited for the request in progress."""

    def may_persist(self) -> bool:
        """The connection could take another request: the body was received whole, and nobody wants it closed."""
        return True


def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, _PHRASES.get(status, b"Unknown"))


_STATUS_LINES: Final = {status: _status_line(status) for status in _PHRASES}


class Sink:
    """One answer to one request of HTTP/1.0 or 1.1. ``persistent`` is meaningful once ``begun``."""

    __slots__ = ("_client", "_framing", "_head_request", "_left", "_outbox", "_pending", "_version", "_wants_more",
                  "begun", "bytes_out", "ended", "persistent")  # fmt: skip

    def __init__(self, client: Client, method: str, version: tuple[int, int], wants_more: bool) -> None:
        """wants_more: the client asked to keep the connection (the default of HTTP/1.1)."""
        self._client = client
        self._outbox = client.outbox
        self._head_request = method == "HEAD"
        self._version = version
        self._wants_more = wants_more
        self._framing = _NONE
        self._left = 0
        self._pending = b""
        self.begun = False
        self.ended = False
        self.persistent = False
        self.bytes_out = 0

    def proceed(self) -> None:
        """Tell the client to send the body it announced: 100 Continue (RFC 9110 §10.1.1)."""
        if not self.begun and (transport := self._client.transport) is not None:
            self._outbox.flush()
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def begin(self, head: Head) -> None:
        """Decide the framing and put the head together. It leaves with the first data, at ``end`` or ``flush``."""
        self.begun = True
        status, length = head.status, head.content_length
        parts = [_STATUS_LINES.get(status) or _status_line(status)]
        join_head(parts, head.headers)
        if status < 200 or status == 204 or status == 304:
            pass  # no body, and no field that describes one
        elif length is not None:
            parts.append(b"Content-Length: %d\r\n" % length)
            if not self._head_request:
                self._framing, self._left = _LENGTH, length
        elif self._head_request:
            pass
        elif self._version == (1, 1):
            parts.append(b"Transfer-Encoding: chunked\r\n")
            self._framing = _CHUNKED
        else:
            self._framing = _CLOSE
        self.persistent = self._wants_more and self._framing != _CLOSE and self._client.may_persist()
        if not self.persistent:
            parts.append(b"Connection: close\r\n")
        elif self._version == (1, 0):
            parts.append(b"Connection: keep-alive\r\n")
        parts.append(b"\r\n")
        self._pending = b"".join(parts)

    def switch(self, head: Head) -> None:
        """Send the 101 to a client that asked for WebSocket; what follows on the connection is no longer HTTP."""
        self.begun = self.ended = True
        parts = [_STATUS_LINES[101]]
        join_head(parts, head.headers)
        parts.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        self._pending = b"".join(parts)
        self._write()
        self._outbox.flush()

    def data(self, data: bytes) -> None:
        """Send a piece of the body. Nothing is sent where the answer has none (HEAD, 204, 304)."""
        framing = self._framing
        if not framing or not data or self.ended:
            return
        num_bytes = len(data)
        self.bytes_out += num_bytes
        if framing == _LENGTH:
            self._left -= num_bytes
        if num_bytes >= _JOIN_BYTES:
            if framing == _CHUNKED:
                self._write(b"%x\r\n" % num_bytes, data, b"\r\n")
            else:
                self._write(data)
            return
        if framing == _CHUNKED:
            data = b"%x\r\n%b\r\n" % (num_bytes, data)
        if self._pending:
            data = self._pending + data
            self._pending = b""
        if (transport := self._client.transport) is not None:
            self._outbox.post(transport, data)

    def flush(self) -> None:
        """Send the head if it still waits for a body."""
        if self._pending:
            self._write()

    def retract(self) -> bool:
        """Whether nothing was sent; a head that still waits for its body is taken back, so that another may begin."""
        if self.begun and not self._pending:
            return False
        self.begun = False
        self._pending = b""
        self._framing, self._left = _NONE, 0
        return True

    def end(self, trailers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Finish the answer. One that is not as long as its head says is aborted instead."""
        if self.ended:
            return
        if self._left:
            self.abort()
            return
        self.ended = True
        if self._framing == _CHUNKED:
            fields = [b"%b: %b\r\n" % field for field in trailers if field[0].lower() not in _NOT_IN_TRAILERS]
            self._write(b"0\r\n", *fields, b"\r\n")
        else:
            self.flush()

    def abort(self, last_words: bytes = b"") -> None:
        """Break the connection off so that nobody can take the answer for complete.

        last_words: a last piece of the body that should arrive. Where a missing end is visible in the framing the
        connection is then closed behind it; else, and without last words, it is reset.
        """
        if self.ended:
            return
        if last_words:
            self.data(last_words)
        self.ended = True
        self.persistent = False
        transport = self._client.transport
        if transport is None:
            return
        if last_words and self._framing in (_CHUNKED, _LENGTH):
            self._outbox.flush()
            transport.close()
        else:
            reset(transport)

    def send(self, head: Head, body: bytes, *, close: bool = False) -> None:
        """Send an answer that was made here, whole. close: it is the last one on the connection."""
        if close:
            self._wants_more = False
        self.begin(head)
        self.data(body)
        self.end()

    def _write(self, *pieces: bytes) -> None:
        pending, self._pending = self._pending, b""
        transport = self._client.transport
        if transport is None:
            return
        if pending:
            pieces = (pending, *pieces)
        if sum(map(len, pieces)) < 2 * _JOIN_BYTES:
            self._outbox.post(transport, pieces[0] if len(pieces) == 1 else b"".join(pieces))
        else:
            self._outbox.flush()
            transport.writelines(pieces)


def http_date() -> bytes:
    """The value of Date, now (RFC 9110 §5.6.7)."""
    return _format_date(int(time()))


@lru_cache(maxsize=1)  # all answers of one second carry the same
def _format_date(wall_s: int) -> bytes:
    return formatdate(wall_s, usegmt=True).encode()


def reset(transport: asyncio.Transport) -> None:
    """End a connection by RST instead of FIN, which would make a close-delimited answer look complete.

    Done in the next turn of the loop: what was written in this one is handed to the kernel first.
    """
    asyncio.get_running_loop().call_soon(_reset, transport)


def _reset(transport: asyncio.Transport) -> None:
    peer = transport.get_extra_info("socket")
    if peer is not None:
        with suppress(OSError, ValueError):  # closed meanwhile
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()
