"""The client's connection: aiohttp's inside. The only file that uses aiohttp's private names.

aiohttp owns the socket's protocol, the parser (llhttp), the queue of parsed heads, the body readers and their flow
control. This file replaces what takes parsed heads and what writes to the client: one request after the other goes
through ``EdgeServer.serve``, so that nothing of aiohttp ever answers; what cannot be served arrives there as a Refusal.
A request is served in the call that received it; the connection's task, ``start``, is only woken for what must be
awaited.
tests/proxy/test_downstream_contract.py holds every name used here.

No timer runs per request: ``check`` compares stamps when the worker's sweep calls it. Knows nothing of routes,
policies or upstreams; ``watcher`` is whoever must hear that the client is slow or gone.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, Protocol, cast

from aiohttp import http_parser, web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler

from proxy.body import BodyBroken, RequestBody
from proxy.config import ListenerLimits
from proxy.errors import Kind
from proxy.gate import Refusal
from proxy.outbox import outbox_of
from proxy.parse_errors import explain
from proxy.sink import Sink, reset

log = logging.getLogger("headrace.proxy")

#: Waiting in user space for a slow client before its upstream is paused.
WRITE_HIGH_BYTES = 65536
WRITE_LOW_BYTES = 16384
_READ_BYTES = 65536
#: After an answer that ends the connection, what the client still sends is read and dropped up to these bounds, so
#: that it can read the answer instead of a reset (RFC 9112 §9.6).
_LINGER_S = 5.0
_LINGER_BYTES = 64 << 20
#: Chunk frames and extensions may weigh this many times the payload, plus a constant: one-byte chunks weigh five.
_CHUNK_OVERHEAD = 8
_CHUNK_OVERHEAD_BYTES = 65536
_CANONICAL_LINE = re.compile(rb"[\r\n]*[^ \r\n]+ [^ \r\n]+ HTTP/[^ \r\n]{3}\r\n")


class Watcher(Protocol):
    """Who relays an answer to this client."""

    def pause(self) -> None:
        """The client reads slower than it is written to."""

    def resume(self) -> None:
        """It has caught up."""

    def gone(self) -> None:
        """The connection is lost; nothing may be written to it any more."""


Work = Coroutine[Any, Any, None]
#: Answers one message and calls ``answered`` when that is done; returns what must be awaited for it, if anything.
Serve = Callable[["ClientConnection", "RawRequestMessage | Refusal", RequestBody], Work | None]
_NO_BODY = RequestBody(EMPTY_PAYLOAD)


def require_c_parser() -> None:
    """Raise RuntimeError if aiohttp fell back to its pure-Python parser, whose leniency nobody has tested here."""
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise RuntimeError("aiohttp's C parser is not loaded; reinstall aiohttp with its extension modules")


class EdgeServer(web.Server):
    """Makes the connections of one listener and knows those that are open."""

    def __init__(self, serve: Serve, limits: ListenerLimits, *, scheme: str) -> None:
        """scheme: "http" or "https"."""
        super().__init__(_answered_by_serve)
        self.serve = serve
        self.limits = limits
        self.scheme = scheme

    def __call__(self) -> RequestHandler:
        """A connection for the listening socket."""
        return ClientConnection(self, self._loop)

    @property
    def open(self) -> list[ClientConnection]:
        """Every connection, those included whose handler still runs after the client left."""
        return [connection for connection in self._connections if isinstance(connection, ClientConnection)]


async def _answered_by_serve(_request: web.BaseRequest) -> NoReturn:
    raise RuntimeError("requests are answered by EdgeServer.serve")


class ClientConnection(RequestHandler):
    """One client. ``closing``: the answer in progress is the last."""

    __slots__ = ("_body", "_busy", "_chunked", "_deaf", "_half_head", "_head_began_at", "_heard_at", "_idle_since",
                 "_linger_until", "_lingered_bytes", "_over", "_queue", "_raw_bytes", "_served", "_serving",
                 "_stalled_since", "_taken_bytes", "_work", "_working",
                 "closing", "outbox", "peer", "server", "sink", "watcher")  # fmt: skip

    def __init__(self, server: EdgeServer, loop: asyncio.AbstractEventLoop) -> None:
        limits = server.limits
        # aiohttp does not say whether a line or a header was too long, only which limit: keep the two apart.
        max_field_size = limits.header if limits.header != limits.line else limits.header + 1
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=0,
            access_log=None,  # type: ignore[arg-type]  # aiohttp's own way to switch it off
            max_line_size=limits.line,
            max_headers=limits.num_headers,
            max_field_size=max_field_size,
            read_bufsize=_READ_BYTES,
            auto_decompress=False,
        )
        now = time.monotonic()
        self.server = server
        self.outbox = outbox_of(loop)
        self.watcher: Watcher | None = None
        self.closing = False
        self.peer = ""
        self.sink: Sink | None = None  # of the answer in progress, or the last one
        #: aiohttp's queue of (RawRequestMessage or Refusal, body).
        self._queue = cast(deque[tuple[Any, StreamReader]], self._messages)
        self._body = _NO_BODY
        self._busy = False  # with a request that is not answered yet
        self._serving = False  # within ``_serve_queued``
        self._work: Work | None = None  # for the task
        self._working = False  # the task is at it
        self._over = False  # nothing more will be served
        self._served = False
        self._deaf = False
        self._chunked = False
        self._half_head = b""
        self._head_began_at = 0.0
        self._heard_at = self._idle_since = now
        self._raw_bytes = 0
        self._linger_until = 0.0
        self._lingered_bytes = 0
        self._stalled_since = 0.0
        self._taken_bytes = 0

    # Serving

    async def start(self) -> None:
        """Do what must be awaited for the connection, until it may take no other request; then close it."""
        try:
            while True:
                if self._work is not None:
                    self._working = True
                    work, self._work = self._work, None
                    if self.transport is None:
                        # The client left before this began. It must begin all the same, to end as it should.
                        cast(asyncio.Task[None], asyncio.current_task()).cancel()
                    await work
                    self._working = False
                elif self._over:
                    break
                else:
                    await self._called()
            if self._deaf or not self._body.complete:
                await self._linger()
        except asyncio.CancelledError:
            pass  # the client left; whoever served it has settled
        except Exception:
            self._fail()
        if self.transport is not None:
            self.outbox.flush()
            self.transport.close()

    def _fail(self) -> None:
        log.exception("a connection failed outside of any request")
        self._over = True
        if self.transport is not None:
            reset(self.transport)

    async def _called(self) -> None:
        """Wait for ``_call``."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _call(self) -> None:
        """Wake the task."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def run(self, work: Work) -> None:
        """Have something awaited for the request in progress, by the connection's task. Cancelled if the client leaves
        while there is no ``watcher``."""
        self._work = work
        self._call()

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
            self._call()
        self._serving = False

    def _serve_next(self) -> None:
        message, payload = self._queue.popleft()
        self._busy = True
        self._free_slot()
        self._body = body = _NO_BODY if payload is EMPTY_PAYLOAD else RequestBody(payload)
        self._raw_bytes = 0
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
            self._over = True
            self._call()
        elif self._queue:
            self._serve_queued()

    def _free_slot(self) -> None:
        """Tell the parser that a message was taken, and read on if it had stopped for that."""
        if self._parser is not None:
            self._parser.message_consumed()
        if self._buffer_paused and len(self._queue) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()

    def may_persist(self) -> bool:
        """The connection could take another request after this answer."""
        return not self.closing and not self._deaf and (self._body is _NO_BODY or self._body.complete)

    def is_idle(self) -> bool:
        """Between two requests, with no part of the next one received."""
        return not self._busy and not self._queue and not self._head_began_at

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

    async def _linger(self) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._deaf = True
        self.outbox.flush()
        if transport.can_write_eof():
            transport.write_eof()
        self._resume_transport_reading()
        self._linger_until = time.monotonic() + _LINGER_S
        await self._loop.create_future()  # cancelled by connection_lost

    # What the transport reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or say that the listener is full."""
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        address = self.peername
        self.peer = address[0] if isinstance(address, tuple) else ""
        limit = self.server.limits.connections
        if len(self.server._connections) > limit:
            self.refuse(Refusal(Kind.CAPACITY, f"the listener's limit of {limit} connections is reached"))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Tell whoever is at work; do not wait for it to be cancelled."""
        task, watcher = self._task_handler, self.watcher
        super().connection_lost(exc)
        self._over = True
        if watcher is not None:
            self.watcher = None
            watcher.gone()
        if task is not None and self._work is None and (watcher is None or not self._working):
            task.cancel()

    def pause_writing(self) -> None:
        """The write buffer is over its high-water mark."""
        super().pause_writing()
        if self.watcher is not None:
            self.watcher.pause()

    def resume_writing(self) -> None:
        """The write buffer has drained."""
        super().resume_writing()
        if self.watcher is not None:
            self.watcher.resume()
        if self._queue:
            self._serve_queued()

    def data_received(self, data: bytes) -> None:
        """Parse, then look at what the parser does not bound or tell: half heads, request lines, chunk frames."""
        if self._deaf:
            self._lingered_bytes += len(data)
            if self._lingered_bytes > _LINGER_BYTES and self.transport is not None:
                self.transport.abort()
            return
        parser = self._parser
        if parser is None:
            return
        self._heard_at = time.monotonic()
        messages = self._queue
        num_known = len(messages)
        refusal: Refusal | None = None
        try:
            parsed, upgraded, _ = parser.feed_data(data)
        except HttpProcessingError as error:
            passed_bytes = error.args[1] if isinstance(error, LineTooLong) else None
            refusal = explain(error.message, passed_bytes, self.server.limits)
        else:
            if not parsed:
                if self._busy:
                    self._weigh_chunks(len(data))
                elif data and not num_known:
                    self._hold_half_head(data)
                return
            # Behind a request for another protocol, which is declined, the parser reads nothing more.
            self._deaf = upgraded
            if not num_known and not self._busy and not self._begins_canonically(data):
                refusal = Refusal(Kind.BAD_REQUEST, "the request line is not METHOD, TARGET and HTTP version")
            else:
                messages.extend(parsed)
        self._half_head = b""
        self._head_began_at = 0.0
        if refusal is not None:
            self.refuse(refusal)
            return
        if len(messages) >= self._max_msg_queue_size and not self._buffer_paused:
            self._pause_reading_for_buffer()
        if not self._busy:
            self._serve_queued()

    def _begins_canonically(self, data: bytes) -> bool:
        """Whether the first line is METHOD SP TARGET SP "HTTP/" and a version (RFC 9112 §3).

        llhttp does not tell RTSP from HTTP, nor one space from two, so the line is looked at in the bytes that came.
        That of a pipelined request is not known to stand there: it is taken as parsed, and re-made like any.
        """
        return _CANONICAL_LINE.match(self._half_head + data) is not None

    def _hold_half_head(self, data: bytes) -> None:
        if not self._head_began_at:
            self._head_began_at = self._heard_at
        self._half_head += data
        limit = self.server.limits.line + self.server.limits.headers
        if len(self._half_head) > limit:
            self.refuse(Refusal(Kind.HEADERS_TOO_LARGE, f"the request head exceeds {limit} bytes"))

    def _weigh_chunks(self, num_bytes: int) -> None:
        self._raw_bytes += num_bytes
        body = self._body
        if not self._chunked or self._reading_paused or body.complete:
            return
        if self._raw_bytes > (1 + _CHUNK_OVERHEAD) * body.received_bytes + _CHUNK_OVERHEAD_BYTES:
            self.refuse(Refusal(Kind.BAD_REQUEST, f"chunk frames exceed {_CHUNK_OVERHEAD} times their payload"))

    # The worker's sweep

    def check(self, now: float) -> None:
        """Hold the client to the listener's times."""
        limits = self.server.limits
        self._check_taking(now, limits.send_idle)
        if self._linger_until:
            if now > self._linger_until and self.transport is not None:
                self.transport.abort()
        elif self._busy:
            waiting_since = self._body.waiting_since
            if waiting_since and now - max(waiting_since, self._heard_at) > limits.body_idle:
                text = f"no byte of the request body came for {limits.body_idle:g} s"
                self.refuse(Refusal(Kind.REQUEST_TIMEOUT, text))
        elif self._head_began_at:
            if now - self._head_began_at > limits.head and not self._deaf:
                text = f"the request head was not complete after {limits.head:g} s"
                self.refuse(Refusal(Kind.REQUEST_TIMEOUT, text))
        elif now - self._idle_since > (limits.keep_alive if self._served else limits.head):
            self.close_if_idle()

    def _check_taking(self, now: float, send_idle_s: float) -> None:
        transport = self.transport
        waiting = transport.get_write_buffer_size() if transport is not None else 0
        taken = self.sink.bytes_out - waiting if self.sink is not None else 0
        if not waiting or taken > self._taken_bytes or not self._stalled_since:
            self._taken_bytes, self._stalled_since = taken, now
        elif now - self._stalled_since > send_idle_s and transport is not None:
            reset(transport)

    def close_if_idle(self) -> None:
        """Close the connection if it is between requests; otherwise the answer in progress becomes the last."""
        self.closing = True
        if self.is_idle() and self.transport is not None:
            self.outbox.flush()
            self.transport.close()
