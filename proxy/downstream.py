"""The client's connection: aiohttp's parser, and around it what an edge needs of a server.

aiohttp parses heads (llhttp) and keeps the bodies and their flow control; this file is the connection that its parser
and its body readers believe they belong to. One request after the other goes through ``EdgeServer.serve`` in the call
that received it; what cannot be served arrives there as a Refusal. A task runs only for what must be awaited.
tests/proxy/test_downstream_contract.py holds what is relied on inside aiohttp.

No timer runs per request: ``check`` compares stamps when the worker's sweep calls it. Knows nothing of routes,
policies or upstreams; ``watcher`` is whoever must hear that the client is slow or gone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from typing import Any, Final, cast

from aiohttp import http_parser
from aiohttp.http_exceptions import HttpProcessingError, InvalidURLError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from proxy.body import BodyBroken, RequestBody
from proxy.client_address import counted_as
from proxy.edge_server import EdgeServer, Work
from proxy.errors import Kind
from proxy.gate import Refusal
from proxy.head_watch import HeadWatch
from proxy.kernel import in_kernel, was_reset
from proxy.outbox import outbox_of
from proxy.parse_errors import explain
from proxy.sink import Client, Sink, reset
from proxy.tls import sni_of

log = logging.getLogger("headrace.proxy")

#: Waiting in user space for a slow client before its upstream is paused.
WRITE_HIGH_BYTES: Final = 65536
WRITE_LOW_BYTES: Final = 16384
#: What one read may bring, and what of a body may wait to be taken (twice as much pauses the client).
READ_BYTES: Final = 65536
#: The same, of a body of which nothing waits for the upstream: if it then stops, one such read and a usual one wait,
#: else three usual ones. Below what glibc maps apart (proxy/memory.py). Not over TLS, which holds what it reads twice.
LARGE_READ_BYTES: Final = 127 << 10
_BODY_BYTES: Final = 16384
#: Heads parsed ahead of their turn, of a client that pipelines.
MAX_QUEUED: Final = 32
#: After an answer that ends the connection, what the client still sends is read and dropped up to these bounds, so
#: that it can read the answer instead of a reset (RFC 9112 §9.6).
_LINGER_S: Final = 5.0
_LINGER_BYTES: Final = 64 << 20


_large_buffer: Final = memoryview(bytearray(LARGE_READ_BYTES))
_buffer: Final = _large_buffer[:READ_BYTES]
_NO_BODY: Final = RequestBody(EMPTY_PAYLOAD)


def require_c_parser() -> None:
    """Raise RuntimeError if aiohttp fell back to its pure-Python parser, whose leniency nobody has tested here."""
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise RuntimeError("aiohttp's C parser is not loaded; reinstall aiohttp with its extension modules")


class ClientConnection(Client):
    """One client. ``closing``: the answer in progress is the last."""

    def __init__(self, server: EdgeServer) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(outbox_of(loop))
        now = time.monotonic()
        self.server = server
        self._loop = loop
        self.closing = False
        self.peer = ""
        self.counted_as = ""  # the client whose connections are counted together
        self.sni: str | None = None  # the name asked for in the TLS handshake
        self.sink: Sink | None = None  # of the answer in progress, or the last one
        limits = server.limits
        # aiohttp does not say whether a line or a header was too long, only which limit: keep the two apart.
        max_field_size = limits.header if limits.header != limits.line else limits.header + 1
        self._parser: Any = http_parser.HttpRequestParser(
            cast(Any, self),
            loop,
            _BODY_BYTES,
            max_line_size=limits.line,
            max_headers=limits.num_headers,
            max_field_size=max_field_size,
            auto_decompress=False,
            max_msg_queue_size=MAX_QUEUED,
        )
        #: Messages that wait for their turn, with their bodies.
        self._queue: deque[tuple[Any, StreamReader]] = deque()
        self._body = _NO_BODY
        self._busy = False  # with a request that is not answered yet
        self._serving = False  # within ``_serve_queued``
        self._task: asyncio.Task[None] | None = None  # of the request in progress
        self._begun = False  # the task has begun
        #: What came behind a request for another protocol, until it is declined or taken over.
        self._behind: bytes | None = None
        self._over = False  # nothing more will be served
        self._served = False
        self._deaf = False
        self._chunked = False
        self._reads_large = server.scheme != "https"
        self._body_paused = False  # a body's reader is full
        self._queue_paused = False  # so is the queue
        self._watch = HeadWatch(limits)
        self._heard_at = now
        self._idle_since = now
        self._linger_until = 0.0
        self._lingered_bytes = 0
        self._stalled_since = 0.0
        self._taken_bytes = 0

    # Serving

    def run(self, work: Work) -> None:
        """Have something awaited for the request in progress. Cancelled if the client leaves while there is no
        ``watcher``."""
        self._begun = False
        self._task = self._loop.create_task(self._run(work))

    async def _run(self, work: Work) -> None:
        self._begun = True
        task = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            if self.transport is None:
                # The client left before this began. It must begin all the same, to end as it should.
                task.cancel()
            await work
        except asyncio.CancelledError:
            pass  # the client left; whoever served it has settled
        except Exception:
            self._fail()
        finally:
            if self._task is task:
                self._task = None

    def _fail(self) -> None:
        log.exception("a connection failed outside of any request")
        self._over = True
        if self.transport is not None:
            reset(self.transport)

    def _serve_queued(self) -> None:
        """Serve what the parser queued, one message at a time. A client that pipelines and does not take its answers
        gets no more of them until it does."""
        if self._serving:
            return
        self._serving = True
        try:
            while self._queue and not self._busy and not self._over and not self.writing_paused:
                self._serve_next()
        except Exception:
            self._fail()
        self._serving = False

    def _serve_next(self) -> None:
        message, payload = self._queue.popleft()
        self._busy = True
        self._free_slot()
        body = _NO_BODY if payload is EMPTY_PAYLOAD else RequestBody(payload)
        self._body = body
        self._watch.begin_body()
        self._stalled_since = 0.0
        self._chunked = body is not _NO_BODY and bool(message.chunked)
        work = self.server.serve(self, message, body)
        if work is not None:
            self.run(work)

    def answered(self, again: bool, now: float) -> None:
        """The request in progress is done with. again: the connection may take another."""
        self._busy = False
        self._served = True
        self._idle_since = now
        if not again or self.closing:
            self._finish()
        elif self._queue:
            self._serve_queued()

    def _finish(self) -> None:
        """No other request will be served: close, so that the client can read what it was sent last."""
        if self._over:
            return
        self._over = True
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self.outbox.flush()
        if self._body.complete and (not self._deaf or self._behind == b""):
            transport.close()
            return
        self._deaf = True
        self._behind = None
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()
        self._linger_until = time.monotonic() + _LINGER_S

    def _free_slot(self) -> None:
        """Tell the parser that a message was taken, and read on if it had stopped for that."""
        if self._parser is not None:
            self._parser.message_consumed()
        if self._queue_paused and len(self._queue) <= MAX_QUEUED // 2:
            self._queue_paused = False
            self.data_received(b"")  # what the parser held back
            self._read_on()

    def may_persist(self) -> bool:
        """The connection could take another request after this answer, or has one that waits already."""
        hears = not self._deaf or bool(self._queue)
        return hears and not self.closing and (self._body is _NO_BODY or self._body.complete)

    def is_idle(self) -> bool:
        """Between two requests, with no part of the next one received."""
        return not self._busy and not self._queue and not self._watch.head_began_at

    def refuse(self, refusal: Refusal) -> None:
        """Hear the client no further and tell it why: in the answer to the request whose body this breaks, if one is
        being received, else in an answer of its own after those that are due."""
        self._deaf = True
        receiving = self._queue[-1][1] if self._queue else self._body.payload
        if not receiving.is_eof():
            receiving.set_exception(BodyBroken(refusal))
            return
        self._queue.append((refusal, EMPTY_PAYLOAD))
        self._serve_queued()

    def take_over(self) -> tuple[asyncio.Transport, bytes]:
        """Let go of the transport, for one who speaks another protocol on it, and of what the client has sent in it.
        They call ``connection_lost`` when it is gone, and keep ``sink.bytes_out``, which tells whether the client takes
        what it is sent."""
        assert self.transport is not None
        behind, self._behind = self._behind or b"", None
        return self.transport, behind

    # What the transport reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or say that the listener is full."""
        made = cast(asyncio.Transport, transport)
        self.transport = made
        made.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        sock = made.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address = made.get_extra_info("peername")
        if isinstance(address, tuple):
            self.peer = address[0]
            self.counted_as = counted_as(address[0])
        if self.server.scheme == "https":
            self.sni = sni_of(made.get_extra_info("ssl_object"))
        full = self.server.enter(self)
        if full is not None:
            self.refuse(full)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever is at work; do not wait for it to be cancelled."""
        task, watcher = self._task, self.watcher
        self.transport = None
        self._over = True
        self._linger_until = 0.0
        self.server.leave(self)
        # Each of these knows this connection: cut, so that it leaves nothing to the cycle collector.
        self._parser = None
        self.sink = None
        self._body = _NO_BODY
        self._queue.clear()
        if watcher is not None:
            self.watcher = None
            watcher.gone()
        elif task is not None and self._begun:
            task.cancel()

    def pause_writing(self) -> None:
        """The write buffer is over its high-water mark."""
        self.writing_paused = True
        if self.watcher is not None:
            self.watcher.pause()

    def resume_writing(self) -> None:
        """The write buffer has drained."""
        self.writing_paused = False
        if self.watcher is not None:
            self.watcher.resume()
        if self._queue:
            self._serve_queued()

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Where a read goes: one place for all connections, because what is read is taken at once."""
        watcher = self.watcher
        if watcher is not None and self._body.waiting_since and self._reads_large and watcher.took_all():
            return _large_buffer
        return _buffer

    def buffer_updated(self, num_bytes: int) -> None:
        """A read has come."""
        self.data_received(bytes(_large_buffer[:num_bytes]))

    def eof_received(self) -> bool:
        """A client that sends no more is taken for gone."""
        return False

    def data_received(self, data: bytes) -> None:
        """Parse, then look at what the parser does not bound or tell: half heads, request lines, chunk frames."""
        if self._deaf:
            if self._behind is not None:
                self._behind += data
                if len(self._behind) > READ_BYTES:
                    self._read_no_more()
                return
            self._lingered_bytes += len(data)
            if self._lingered_bytes > _LINGER_BYTES and self.transport is not None:
                self.transport.abort()
            return
        parser = self._parser
        if parser is None:
            return
        self._heard_at = time.monotonic()
        queue, watch = self._queue, self._watch
        num_known = len(queue)
        refusal: Refusal | None = None
        try:
            parsed, upgraded, behind = parser.feed_data(data)
        except HttpProcessingError as error:
            passed_bytes = error.args[1] if isinstance(error, LineTooLong) else None
            # What is said of a URL is the URL.
            message = "the request target is no path or URL" if isinstance(error, InvalidURLError) else error.message
            refusal = explain(message, passed_bytes, self.server.limits)
        else:
            if not parsed:
                self._hear_part(data, num_known)
                return
            if upgraded:  # behind a request for another protocol the parser reads nothing more
                self._deaf = True
                self._behind = behind
            if watch.has_bad_line(data, parsed[0][0].method, parsed[0][0].path):
                refusal = Refusal(Kind.BAD_REQUEST, "the request line is not METHOD, TARGET and HTTP version")
            else:
                queue.extend(parsed)
        watch.head_is_over()
        if refusal is not None:
            self.refuse(refusal)
            return
        refusal = watch.behind_heads(data, queue[-1][1] is not EMPTY_PAYLOAD, self._deaf, self._heard_at)
        if refusal is not None:
            self.refuse(refusal)
        if len(queue) >= MAX_QUEUED:
            self._queue_paused = True
            self._read_no_more()
        if not self._busy:
            self._serve_queued()

    def _hear_part(self, data: bytes, num_known: int) -> None:
        """Take note of bytes that completed no head."""
        refusal: Refusal | None = None
        if data and not num_known and not self._busy:
            refusal = self._watch.part_of_head(data, self._heard_at)
        else:
            self._watch.no_head()
            if self._busy and self._chunked and not self._body_paused:
                refusal = self._watch.part_of_chunks(len(data), self._body)
        if refusal is not None:
            self.refuse(refusal)

    # What aiohttp's body readers call

    @property
    def connected(self) -> bool:
        return self.transport is not None

    def pause_reading(self) -> None:
        """A body's reader is full."""
        self._body_paused = True
        if self._parser is not None:
            self._parser.pause_reading()
        self._read_no_more()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """It has room again. resume_parser: go on with what the parser holds back."""
        self._body_paused = False
        if resume_parser:
            self.data_received(b"")
        self._read_on()

    def _read_no_more(self) -> None:
        if self.transport is not None:
            self.transport.pause_reading()

    def _read_on(self) -> None:
        if self.transport is not None and not self._body_paused and not self._queue_paused:
            self.transport.resume_reading()

    # The worker's sweep

    def check(self, now: float) -> None:
        """Hold the client to the listener's times."""
        limits = self.server.limits
        if self._body_paused and self.transport is not None and was_reset(self.transport):
            self.transport.abort()
            return
        self._check_taking(now, limits.send_idle)
        if self._linger_until:
            if now > self._linger_until and self.transport is not None:
                self.transport.abort()
        elif self._busy:
            waiting_since = self._body.waiting_since
            if waiting_since and now - max(waiting_since, self._heard_at) > limits.body_idle:
                text = f"no byte of the request body came for {limits.body_idle:g} s"
                self.refuse(Refusal(Kind.REQUEST_TIMEOUT, text))
        elif self._watch.head_began_at:
            if now - self._watch.head_began_at > limits.head and not self._deaf:
                text = f"the request head was not complete after {limits.head:g} s"
                self.refuse(Refusal(Kind.REQUEST_TIMEOUT, text))
        elif now - self._idle_since > (limits.keep_alive if self._served else limits.head):
            self.close_if_idle()

    def _check_taking(self, now: float, send_idle_s: float) -> None:
        transport = self.transport
        waiting = transport.get_write_buffer_size() if transport is not None else 0
        if not waiting or transport is None:
            self._stalled_since = 0.0
            return
        bytes_out = self.sink.bytes_out if self.sink is not None else 0
        taken = bytes_out - waiting - in_kernel(transport)
        if taken > self._taken_bytes or not self._stalled_since:
            self._taken_bytes, self._stalled_since = taken, now
        elif now - self._stalled_since > send_idle_s:
            reset(transport)

    def close_if_idle(self) -> None:
        """Close the connection if it is between requests; otherwise the answer in progress becomes the last."""
        self.closing = True
        if self.is_idle() and self.transport is not None:
            self.outbox.flush()
            self.transport.close()
