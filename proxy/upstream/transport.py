"""One connection to an upstream server: a request out, its answer to whoever exchanges.

Owns the socket side of HTTP/1.1 towards upstreams, over TCP, TLS or a unix socket: flow control both ways, what the end
of the connection means for the answer, and whether another request may follow. What is received is parsed and passed on
in the same call, without a task; all connections of a worker share one receive buffer, because reading and parsing
never interleave in one loop.

An upstream that has heard enough of a body answers and closes, and what is sent to it then fails, perhaps before its
answer was read. The event loop closes a socket at that; so an upload has a second descriptor of it, by which the answer
is read all the same. (Not over TLS, where only the event loop can read it.)
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Final, cast

from proxy.outbox import outbox_of
from proxy.upstream.parser import ProtocolError, Receiver, ResponseParser
from proxy.upstream.retry import Failure

#: One read takes an answer of 64 KiB and its head; a slow client may have so much waiting, and the high-water mark.
READ_BYTES: Final = 98304
#: The same, while nothing waits for the client: if it then stops, no more waits than else. Below what glibc maps apart.
LARGE_READ_BYTES: Final = 127 << 10
#: For a client over TLS, whose connection holds what waits twice, in the clear and encrypted.
SHORT_READ_BYTES: Final = 32768
#: A connection that was idle for so long and is closed under a request was, most likely, closed for being idle. One in
#: constant use was not, whatever the server meant by it: to repeat what it closes, free of any budget, feeds a storm.
STALE_S: Final = 0.2
WRITE_HIGH_BYTES: Final = 65536
WRITE_LOW_BYTES: Final = 16384
_MAX_LAST_READS: Final = 16
_large_buffer: Final = memoryview(bytearray(LARGE_READ_BYTES))
_buffer: Final = _large_buffer[:READ_BYTES]
_short_buffer: Final = _buffer[:SHORT_READ_BYTES]


class Exchanger(Receiver):
    """Who sent the request on a connection and takes its answer."""

    def received(self) -> None:
        """All that a read brought was passed on: nothing more of it is to be waited for, and if the answer has ended,
        it is known whether anything came behind it."""

    def failed(self, failure: Failure, reason: str) -> None:
        """The answer will not become complete; the connection is gone."""

    def broke(self, error: Exception) -> None:
        """Taking the answer raised: a fault of ours, and the connection is to be aborted."""

    def passed_all(self) -> bool:
        """All that was received has gone on: none of it waits here."""
        return False


class UpstreamConnection:
    """Carries one request at a time. ``heard_at`` and ``idle_since``: monotonic seconds.

    uvloop takes whatever has the methods of an asyncio.BufferedProtocol for one.
    """

    __slots__ = ("_exchanger", "_heard", "_on_lost", "_outbox", "_parser", "_reading_paused", "_second",
                 "_short_reads", "_was_idle_s", "_writable", "heard_at", "idle_since", "num_requests",
                 "transport")  # fmt: skip

    def __init__(self, on_lost: Callable[[UpstreamConnection], None] | None = None) -> None:
        """on_lost: told once, when a connection that was made is no more."""
        self._on_lost = on_lost
        self.transport: asyncio.Transport | None = None
        self.num_requests = 0
        self.idle_since = 0.0
        self._was_idle_s = 0.0
        self.heard_at = 0.0
        self._outbox = outbox_of(asyncio.get_running_loop())
        self._exchanger: Exchanger | None = None
        self._parser = ResponseParser()
        self._heard = False
        self._reading_paused = False
        self._short_reads = False
        self._second: socket.socket | None = None  # descriptor of the same connection, during an upload
        self._writable: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """An idle one can take a request."""
        transport = self.transport
        return transport is not None and not transport.is_closing()

    def request(
        self,
        data: bytes,
        exchanger: Exchanger,
        *,
        head_request: bool,
        now: float,
        may_switch: bool = False,
        short_reads: bool = False,
    ) -> None:
        """Send the head of a request, and what is there of its body; the answer goes to ``exchanger``. may_switch: it
        asks for another protocol. short_reads: a read of the answer is to bring less."""
        assert self.transport is not None
        self.num_requests += 1
        self._exchanger = exchanger
        self._parser.expect(exchanger, head_request=head_request, may_switch=may_switch)
        self._heard = False
        self._short_reads = short_reads
        self._was_idle_s = now - self.idle_since if self.num_requests > 1 else 0.0
        self.heard_at = now
        self._outbox.post(self.transport, data)

    async def write(self, data: bytes) -> None:
        """Send a piece of the request body; returns when another may follow. Does nothing on a lost connection."""
        transport = self.transport
        if transport is None:
            return
        self._outbox.flush()
        if self._second is None:
            self._second = _second_descriptor(transport)
        transport.write(data)
        self.heard_at = time.monotonic()
        if self._writable is not None:
            await self._writable

    def finish(self) -> bool:
        """Let go of the exchange. True: the connection can carry another; else it is closed here."""
        expecting = self._exchanger is not None
        self._exchanger = None
        self._close_second()
        if expecting and self._parser.reusable and self._writable is None and self.is_open:
            if self._reading_paused:
                self.resume_reading()
            return True
        self.abort()
        return False

    def take_over(self) -> asyncio.Transport:
        """Let go of the transport, for one who speaks another protocol on it."""
        assert self.transport is not None
        self._outbox.flush()
        self._exchanger = None
        return self.transport

    def abort(self) -> None:
        """Close at once: the upstream shall stop working on what was asked."""
        self._exchanger = None
        self._parser.close()
        self._close_second()
        if self.transport is not None:
            self.transport.abort()

    def _close_second(self) -> None:
        second, self._second = self._second, None
        if second is not None:
            second.close()

    def pause_reading(self) -> None:
        """Read no more until ``resume_reading``: the client is slow."""
        if not self._reading_paused and self.transport is not None:
            self._reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again; the time spent paused is not the upstream's."""
        if self._reading_paused and self.transport is not None:
            self._reading_paused = False
            self.heard_at = time.monotonic()
            self.transport.resume_reading()

    @property
    def reading_paused(self) -> bool:
        return self._reading_paused

    @property
    def drained(self) -> bool:
        """All that was written is the kernel's."""
        return self.transport is not None and self.transport.get_write_buffer_size() == 0

    @property
    def writing_paused(self) -> bool:
        """The upstream takes the request slower than it is sent."""
        return self._writable is not None

    # What the transport reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        if transport.get_extra_info("ssl_object") is not None:
            # While we are paused uvloop reads on up to its high-water mark, and forgets what it read when a FIN comes.
            cast(Any, transport).set_read_buffer_limits(high=1, low=0)
        peer = transport.get_extra_info("socket")
        if peer is not None and peer.family in (socket.AF_INET, socket.AF_INET6):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._short_reads:
            return _short_buffer
        exchanger = self._exchanger
        if exchanger is not None and self._parser.in_body and exchanger.passed_all():
            return _large_buffer
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        exchanger = self._exchanger
        if exchanger is None:
            self.abort()  # nothing was asked: whatever this is, no client shall get it
            return
        self._heard = True
        self.heard_at = time.monotonic()
        try:
            self._parser.feed(_large_buffer[:nbytes])
            exchanger.received()
        except ProtocolError as error:
            self.abort()
            exchanger.failed(Failure.PROTOCOL, str(error))
        except Exception as fault:
            exchanger.broke(fault)

    def eof_received(self) -> bool:
        """A FIN, or over TLS a close_notify: the one clean end that an answer without a length has."""
        exchanger = self._exchanger
        if exchanger is not None:
            try:
                self._parser.eof()
                exchanger.received()
            except Exception as error:
                exchanger.broke(error)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._on_lost is not None:
            self._on_lost(self)
        self.resume_writing()
        if self._second is not None:
            if self._exchanger is not None and isinstance(exc, ConnectionError):
                self._read_last(self._second, self._exchanger)
            self._close_second()
        exchanger, self._exchanger = self._exchanger, None
        self._parser.close()
        if exchanger is None or self._parser.complete:
            return
        how = "was reset" if isinstance(exc, ConnectionError) else "closed"
        if self._heard:
            exchanger.failed(Failure.BROKE_OFF, f"the connection {how} in the middle of the answer")
        else:
            which = "kept-alive connection" if self.num_requests > 1 else "connection"
            failure = Failure.STALE if self._was_idle_s >= STALE_S else Failure.BROKE_OFF
            exchanger.failed(failure, f"the {which} {how} before an answer")

    def _read_last(self, second: socket.socket, exchanger: Exchanger) -> None:
        """Take what came before the reset that a write ran into. Its end is no clean one."""
        try:
            for _ in range(_MAX_LAST_READS):
                num_bytes = second.recv_into(_buffer)
                if not num_bytes or self._parser.complete:
                    break
                self._heard = True
                self._parser.feed(_buffer[:num_bytes])
        except OSError:
            pass  # that is all there was
        except ProtocolError as error:
            self._exchanger = None
            exchanger.failed(Failure.PROTOCOL, str(error))
        except Exception as fault:
            self._exchanger = None
            exchanger.broke(fault)
        if self._parser.complete:
            exchanger.received()

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)


def _second_descriptor(transport: asyncio.Transport) -> socket.socket | None:
    sock = transport.get_extra_info("socket")
    if sock is None or transport.get_extra_info("ssl_object") is not None:
        return None
    try:
        return socket.socket(fileno=os.dup(sock.fileno()))
    except OSError:  # no descriptor left: one answer less may be read
        return None
