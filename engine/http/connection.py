"""One client's connection: requests parsed by httptools (llhttp), served one after the other, answers written.

Owns a request's life on the event loop: a task of its own, which ends with the connection; what comes behind it waits.
No timer runs: whoever connects is the box's own proxy, which decides how long a connection lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, cast

import httptools

from engine.http import head
from engine.http.incoming import Incoming
from engine.http.message import Piece, Request, Response
from engine.http.stream import Stream

Answer = Response | Stream
Handler = Callable[[Request], Awaitable[Answer]]

_READ_BYTES: Final = 256 << 10
_MAX_HEAD_BYTES: Final = 1 << 20  # above every limit of the proxy: it judges heads, not the engine
_MAX_HEADERS: Final = 1000
_VERSIONS: Final = frozenset(("1.1", "1.0"))
#: What is still sent of a body that nobody wants is dropped, up to these bounds: so that the answer can be read
#: instead of a reset (RFC 9112 9.6).
_LINGER_S: Final = 5.0
_LINGER_BYTES: Final = 64 << 20
_JOINED_BYTES: Final = 64 << 10  # up to here one write of joined bytes is faster than several of what lies in arrays

_log = logging.getLogger(__name__)
_buffer: Final = memoryview(bytearray(_READ_BYTES))


class Count(Protocol):
    """Of the requests whose answers are not out."""

    def enter(self) -> None:
        """One more."""
        ...

    def leave(self) -> None:
        """One less."""
        ...


class Connection:
    """One client; a buffered protocol. handler: gives the answer to each request; it raises nothing that it could say
    to the client."""

    def __init__(self, handler: Handler, connections: set[Connection], count: Count) -> None:
        """connections: all that are open."""
        self._handler = handler
        self._connections = connections
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request] = deque()  # behind the one that is served
        self._task: asyncio.Task[None] | None = None
        self._given_up = False  # the task was told that the client has left
        self._receiving: Incoming | None = None  # the body that comes now
        self._rest: memoryview | None = None  # where what is missing of it goes, past the parser
        self._deaf = False  # what comes is dropped
        self._num_dropped = 0
        self._drained: asyncio.Future[None] | None = None  # the client takes less than it is sent
        self._asked_first = False  # the client waits for a 100 (Continue)
        self._target = b""
        self._headers: dict[str, str] = {}
        self._num_headers = self._num_head_bytes = 0  # the bytes: since the last one of a body
        self._lingering: asyncio.TimerHandle | None = None

    def shut(self) -> asyncio.Task[None] | None:
        """End it: now, when a request is served, or else when what was written has left. The task that still has to
        end, if one has."""
        if self._task is not None:
            self.abort()
            self._give_up()
        elif self._transport is not None:
            self._transport.close()
        return self._task

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left: so does whoever works for it, and what was kept of it."""
        self._transport = None
        self._connections.discard(self)
        self._waiting.clear()
        # Each of them leads back here; what such a ring holds would stay until the interpreter searches for rings.
        del self._parser
        self._receiving = self._rest = None
        if self._lingering is not None:
            self._lingering.cancel()
        if self._drained is not None and not self._drained.done():
            self._drained.set_exception(ConnectionResetError("the client has left"))
            self._drained.exception()  # nobody may wait for it
        self._give_up()

    def eof_received(self) -> bool:
        """A client that sends no more is taken for gone, also while it has not taken all that was written to it."""
        self._give_up()
        return False

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """It has taken most of it."""
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Where a read goes: one place for all connections, because what is read is taken at once; of a large body the
        place where it is to lie."""
        return _buffer if self._rest is None else self._rest

    def buffer_updated(self, num_bytes: int) -> None:
        """A read has come."""
        if self._rest is None:
            self.data_received(_buffer[:num_bytes])
        else:
            self._land(self._rest, num_bytes)

    def data_received(self, data: bytes | memoryview) -> None:
        """Parse, and serve what is there."""
        if (rest := self._rest) is not None:  # asyncio's own loop
            size = min(len(rest), len(data))
            rest[:size] = data[:size]
            self._land(rest, size)
            if not (data := data[size:]):
                return
        if self._deaf:
            self._drop(len(data))
            return
        self._num_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._deaf = True  # no other protocol is spoken here: this request is answered, and is the last
        except httptools.HttpParserError:
            self._refuse("the request is not HTTP/1.1")
        if self._num_head_bytes > _MAX_HEAD_BYTES and not self._deaf:
            self._refuse("the request's head or its trailer is too large")
        self._serve_next()

    # What the parser tells.

    def on_message_begin(self) -> None:
        """A head begins."""
        self._target, self._headers, self._num_headers = b"", {}, 0
        self._asked_first = False

    def on_url(self, part: bytes) -> None:
        """Of the request line."""
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field, whole."""
        self._num_headers += 1
        if self._num_headers > _MAX_HEADERS:
            raise ValueError("too many headers")
        if self._receiving is not None:
            return  # a trailer: whoever judged the head has not seen it (RFC 9110 6.5.1)
        headers, key = self._headers, name.decode("utf-8", "replace").lower()
        text = value.decode("utf-8", "replace").rstrip(" \t")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        """The head is there."""
        parser, headers = self._parser, self._headers
        version = parser.get_http_version()
        if version not in _VERSIONS:
            raise ValueError(f"HTTP/{version} is not spoken here")
        length, coding = headers.get("content-length"), headers.get("transfer-encoding")
        if coding is not None and (coding.lower() != "chunked" or version == "1.0"):
            raise ValueError("a transfer coding that is not spoken here")
        upgrades = parser.should_upgrade()
        if upgrades and (coding is not None or length not in (None, "0")):
            raise ValueError("a body before another protocol")  # the parser does not read it
        body = Incoming(self, int(length) if length is not None and length.isdigit() else None)
        method, keep_alive = parser.get_method().decode(), parser.should_keep_alive() and not upgrades
        target = self._target.decode("utf-8", "replace")
        self._waiting.append(Request(self, method, target, version, headers, body, keep_alive=keep_alive))
        self._receiving = body
        self._asked_first = version == "1.1" and headers.get("expect", "").lower() == "100-continue"

    def on_body(self, piece: bytes) -> None:
        """Of the body."""
        self._num_head_bytes = 0
        if self._receiving is not None:
            self._receiving.feed(piece)

    def on_message_complete(self) -> None:
        """The body has ended."""
        if self._receiving is not None:
            self._receiving.end()
        self._receiving = None
        self._num_head_bytes = 0

    # What a request's body and its answer ask for.

    def proceed(self) -> None:
        """See ``engine.http.incoming``."""
        if self._asked_first and self._transport is not None:
            self._asked_first = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def pause(self) -> None:
        """Read no more for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and len(self._waiting) == 0:
            self._transport.resume_reading()

    def read_into(self, rest: memoryview) -> None:
        """What still comes of the body goes there, past the parser, which has been given all that came."""
        self._rest = rest

    def begin(self, request: Request, headers: Mapping[str, str]) -> Stream:
        """Begin an answer whose length is not known yet."""
        return Stream(self, request, headers)

    def send(self, data: bytes) -> None:
        """Write; nothing once the client has left."""
        if self._transport is not None:
            self._transport.write(data)

    async def put(self, data: bytes) -> None:
        """Write; wait while the client takes less than it is sent."""
        if self._transport is None:
            raise ConnectionResetError("the client has left")
        self._transport.write(data)
        if self._drained is not None:
            await self._drained

    def abort(self) -> None:
        """End the connection so that nobody can take the answer for complete."""
        if self._transport is not None:
            self._transport.abort()

    # Serving.

    def _serve_next(self) -> None:
        if self._task is not None:
            if self._waiting:
                self.pause()  # of a client that pipelines no more is kept than one read has brought
        elif self._waiting and self._transport is not None:
            request = self._waiting.popleft()
            self._given_up = False
            self._task = self._loop.create_task(self._serve(request))

    def _give_up(self) -> None:
        """Nobody waits for the answer. Said once: said again it would end what the task does to end well."""
        if self._task is not None and not self._given_up:
            self._given_up = True
            self._task.cancel()

    async def _serve(self, request: Request) -> None:
        again = False
        self._count.enter()
        try:
            answer = await self._handler(request)
            if isinstance(answer, Stream):
                again = answer.ended and request.keep_alive
            elif request.stream is None:
                self._send(request, answer)
                if self._drained is not None:
                    await self._drained
                again = request.keep_alive
            elif not request.stream.ended:  # of a second head nobody could tell that it is none of the body
                self.abort()
        except (asyncio.CancelledError, ConnectionError):
            pass  # the client has left
        except Exception:
            _log.exception("an answer could not be sent")
            self.abort()
        finally:
            self._count.leave()
        self._task = None
        self._finish(request, again)

    def _send(self, request: Request, answer: Response) -> None:
        transport = self._transport
        if transport is None:
            return
        body: Sequence[Piece] = answer.body
        size = sum(map(len, body))
        if not request.body.complete:
            request.keep_alive = False
        framing = f"Content-Type: {answer.content_type}\r\nContent-Length: {size}\r\n"
        connection = head.connection_line(request.version, request.keep_alive)
        begin = head.render(answer.status, framing, answer.headers, connection)
        if request.method == "HEAD":
            transport.write(begin)
        elif size <= _JOINED_BYTES:
            transport.write(b"".join((begin, *body)))
        else:
            transport.writelines([begin, *body])

    def _finish(self, request: Request, again: bool) -> None:
        """The answer is out: the next request, or the end."""
        transport = self._transport
        if transport is None:
            return
        if transport.is_closing():
            return
        if again and request.body.complete and (self._waiting or not self._deaf):
            if self._waiting:
                self._serve_next()
            if not self._waiting:
                transport.resume_reading()
        elif request.body.complete:
            transport.close()
        else:
            self._linger(transport)

    def _linger(self, transport: asyncio.Transport) -> None:
        """All is said; the client has not sent all."""
        self._deaf, self._rest = True, None
        self._lingering = self._loop.call_later(_LINGER_S, transport.close)
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()

    def _land(self, rest: memoryview, num_bytes: int) -> None:
        """So much of a large body has come; at its end another parser begins, for this one still waits for it."""
        body = self._receiving
        assert body is not None
        body.land(num_bytes)
        if num_bytes < len(rest):
            self._rest = rest[num_bytes:]
            return
        self._rest = None
        self._parser = httptools.HttpRequestParser(self)
        self.on_message_complete()

    def _refuse(self, why: str) -> None:
        """What comes is not what can be read: the last request is answered so, or its body ends so."""
        self._deaf = True
        if self._receiving is not None:
            self._receiving.fail(why)
            self._receiving = None
        elif self._transport is not None and self._task is None and not self._waiting:
            body = b'{"error":"%b"}' % why.encode()
            framing = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            self._transport.write(head.render(400, framing, None, head.connection_line("1.1", False)) + body)
            self._linger(self._transport)

    def _drop(self, num_bytes: int) -> None:
        self._num_dropped += num_bytes
        if self._num_dropped > _LINGER_BYTES:
            self.abort()
