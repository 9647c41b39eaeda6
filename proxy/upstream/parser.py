"""The answers of HTTP/1.x on one connection to an upstream: bytes in, calls on a receiver out. No sockets.

Owns the reading of responses by httptools (llhttp) and what llhttp does not know: that a HEAD request's answer has no
body, that a 1xx is not the answer, that one answer was asked for and anything behind it is surplus, how large a head
may be, and what the end of the connection means. What follows the read that brought the head no longer passes through
llhttp if the body's frame is known (Content-Length, or until the connection closes). Interim answers are dropped: to
forward them (RFC 9110 §15.2) is allowed to break old clients (RFC 8297 §3), and ours asked for none.

What contradicts itself is a ProtocolError and the connection is not used again: two lengths, a length beside chunks, a
coding other than chunked, a change of protocol that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import httptools

from proxy.exchange import Head
from proxy.headers import read_response_headers

MAX_HEAD_BYTES: Final = 131072
MAX_HEADERS: Final = 256
MAX_INTERIM: Final = 16
_VERSIONS: Final = frozenset(("1.1", "1.0"))
_PARSED: Final = 0
_LENGTH: Final = 1
_UNTIL_CLOSE: Final = 2

Fields = list[tuple[bytes, bytes]]


class ProtocolError(Exception):
    """The upstream does not speak HTTP/1.x correctly; the message says how, without quoting it."""


class Receiver:
    """Who takes the answer; this one, nobody. ``end`` comes exactly once and last, unless the answer breaks off."""

    def head(self, head: Head, dated: bool) -> None:
        """The final head, with the fields that go on and its length, if another than the end tells it. dated: it has a
        Date."""

    def data(self, data: bytes) -> None:
        """A piece of the body, its transfer coding removed."""

    def end(self, trailers: Sequence[tuple[bytes, bytes]]) -> None:
        """The answer is complete."""

    def switched(self, head: Head, behind: bytes) -> None:
        """The upstream agreed to the change of protocol (101) that was asked for: it speaks HTTP no more. behind: what
        it has already sent in the other one. Comes instead of ``head`` and ``end``."""


_NOBODY: Final = Receiver()


class ResponseParser:
    """Parses one answer after the other, each asked for by ``expect``. ``complete``: the one expected last has ended.
    ``reusable``: the connection may carry another request."""

    __slots__ = ("_at_boundary", "_fields", "_head_request", "_interim", "_keep_alive", "_left", "_may_switch",
                 "_mode", "_num_interim", "_parser", "_quiet_bytes", "_receiver", "_surplus", "_switched",
                 "complete")  # fmt: skip

    def __init__(self) -> None:
        self._receiver: Receiver = _NOBODY
        self._parser: httptools.HttpResponseParser | None = None
        self._at_boundary = False  # llhttp has read an answer to its end: it can read another

    def expect(self, receiver: Receiver, *, head_request: bool, may_switch: bool = False) -> None:
        """Parse another answer: that to a request just sent. may_switch: it asked for another protocol."""
        self._receiver = receiver
        self._head_request = head_request
        self._may_switch = may_switch
        self._switched: Head | None = None
        if not self._at_boundary:
            self._parser = httptools.HttpResponseParser(self)
        self._at_boundary = False
        self._fields: Fields = []
        self._quiet_bytes = 0  # received since the last piece of body: the size of what is being collected
        self._num_interim = 0
        self._interim = False
        self._mode = _PARSED
        self._left = 0
        self._keep_alive = False
        self._surplus = False
        self.complete = False

    @property
    def in_body(self) -> bool:
        """The head has come, and the length or the end of the connection tells how much follows."""
        return self._mode != _PARSED

    @property
    def reusable(self) -> bool:
        return self.complete and self._keep_alive and not self._surplus

    def feed(self, data: memoryview) -> None:
        """Take what was received. ``data`` is only read during the call. Raises ProtocolError."""
        parser = self._parser
        if self.complete or parser is None:
            self._surplus = True
        elif self._mode == _LENGTH:
            self._feed_length(data)
        elif self._mode == _UNTIL_CLOSE:
            self._receiver.data(bytes(data))
        else:
            self._quiet_bytes += len(data)
            try:
                parser.feed_data(data)
            except httptools.HttpParserCallbackError as raised:
                raise raised.__context__ or raised from None
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                if self._switched is not None and isinstance(error, httptools.HttpParserUpgrade):
                    self._switch(self._switched, bytes(data[error.args[0] :]))
                    return
                if not self.complete:
                    raise ProtocolError(f"the answer is malformed: {error}") from None
                self._surplus = True
            if self._quiet_bytes > MAX_HEAD_BYTES:
                raise ProtocolError(f"head, chunk extension or trailers of the answer exceed {MAX_HEAD_BYTES} bytes")

    def eof(self) -> bool:
        """The upstream closed the connection. True: that completes the answer; False: it broke off, or was over."""
        if self._mode == _UNTIL_CLOSE and not self.complete:
            self._finish(())
            return True
        return False

    def _switch(self, head: Head, behind: bytes) -> None:
        self.complete = True
        receiver, self._receiver = self._receiver, _NOBODY
        receiver.switched(head, behind)

    def _feed_length(self, data: memoryview) -> None:
        left = self._left - len(data)
        if left > 0:
            self._left = left
            self._receiver.data(bytes(data))
            return
        self._surplus = left < 0
        self._receiver.data(bytes(data[: self._left]))
        self._finish(())

    def close(self) -> None:
        """Parse no more. llhttp's parser knows its callbacks and they know it: a cycle, which is cut here so that a
        connection leaves nothing to the cycle collector."""
        self._parser = None
        self._receiver = _NOBODY

    def _finish(self, trailers: Sequence[tuple[bytes, bytes]]) -> None:
        self.complete = True
        receiver, self._receiver = self._receiver, _NOBODY  # an idle connection holds no request
        receiver.end(trailers)

    # What httptools calls

    def on_message_begin(self) -> None:
        if self.complete:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        parser = self._parser
        assert parser is not None
        status: int = parser.get_status_code()
        if parser.get_http_version() not in _VERSIONS:
            raise ProtocolError("the answer is not HTTP/1.0 or HTTP/1.1")
        fields, self._fields = self._fields, []
        if len(fields) > MAX_HEADERS:
            raise ProtocolError(f"the answer has more than {MAX_HEADERS} header fields")
        if status == 101 and self._may_switch:
            # llhttp knows of an Upgrade without asking to what: nobody asked for another protocol than this one.
            if [value.lower() for name, value in fields if name.lower() == b"upgrade"] != [b"websocket"]:
                raise ProtocolError("the upstream changed to another protocol than WebSocket")
            self._interim = True
            self._switched = Head(101, read_response_headers(fields).kept)
            return
        if status < 200:
            self._note_interim(status)
            return
        self._interim = False
        read = read_response_headers(fields)
        kept, length_value, coding, dated = read.kept, read.length, read.coding, read.dated
        length: int | None = None
        if coding is not None:
            if length_value is not None or coding.strip(b" \t").lower() != b"chunked":
                raise ProtocolError("the answer has a transfer coding other than chunked, or a length beside it")
        elif length_value is not None:
            if not length_value.isdigit():
                raise ProtocolError("the answer has no one Content-Length")
            length = int(length_value)
        self._keep_alive = parser.should_keep_alive()
        self._quiet_bytes = 0
        if self._head_request or status == 204 or status == 304:
            self._receiver.head(Head(status, kept, length if self._head_request else None), dated)
            self._finish(())
            return
        if length is not None:
            self._left = length
        elif coding is None:
            self._mode = _UNTIL_CLOSE
            self._keep_alive = False
        self._receiver.head(Head(status, kept, length), dated)
        if length:
            self._mode = _LENGTH

    def _note_interim(self, status: int) -> None:
        self._interim = True
        self._num_interim += 1
        if status < 100:
            raise ProtocolError("the status of the answer is not a number from 100 to 999")
        if status == 101:
            raise ProtocolError("the upstream changed the protocol without being asked")
        if self._num_interim > MAX_INTERIM:
            raise ProtocolError(f"more than {MAX_INTERIM} interim answers came before the answer")

    def on_body(self, body: bytes) -> None:
        if self.complete:
            self._surplus = True
            return
        if self._mode == _LENGTH:
            self._left -= len(body)
        self._quiet_bytes = 0
        self._receiver.data(body)

    def on_message_complete(self) -> None:
        if self._interim:
            return
        self._at_boundary = True
        if not self.complete:
            self._finish(self._fields)
