"""What passes to a client, kept beside: the bytes of one answer, up to a bound. Pure.

An answer is told to be over before its last byte passes: so what a client has been given whole can be kept already,
whatever happens to this process in the next moment. Where the length is known the last piece waits for the end, which
comes in the same call and knows whether the answer failed; else the end is the last byte.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.answer_filter import AnswerFilter
from proxy.exchange import Exchange, Head


class Recorder(AnswerFilter):
    """A filter that changes nothing. over: told, once, when the upstream's answer has come to its end and its last byte
    has not passed. complete: it has, and does not say that it failed."""

    __slots__ = ("_failed", "_last", "_left", "_limit_bytes", "_num_bytes", "_over", "_pieces", "complete")

    def __init__(self, limit_bytes: int, over: Callable[[], None]) -> None:
        self._limit_bytes = limit_bytes
        self._over: Callable[[], None] | None = over
        self._left: int | None = None  # bytes until its last, where its length is known
        self._last = b""  # the piece that waits for the end
        self._num_bytes = 0
        self._pieces: list[bytes] = []
        self._failed = False
        self.complete = False

    @property
    def body(self) -> bytes | None:
        """What has passed, or is about to; None if that is more than the bound."""
        return b"".join(self._pieces) if self._num_bytes <= self._limit_bytes else None

    def head(self, x: Exchange, head: Head) -> None:
        self._left = head.content_length

    def data(self, data: bytes) -> bytes:
        self._num_bytes += len(data)
        if self._num_bytes <= self._limit_bytes:
            self._pieces.append(bytes(data))
        elif self._pieces:
            self._pieces = []
        if self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                self._last += data
                return b""
        return data

    def faulted(self) -> None:
        self._failed = True

    def end(self) -> bytes:
        self.complete = not self._failed
        over, self._over = self._over, None
        if over is not None:
            over()
        last, self._last = self._last, b""
        return last

    def broken(self) -> None:
        self._pieces, self._num_bytes, self._last = [], 0, b""
        self._failed = self.complete = False

    def forget(self) -> None:
        """Tell nobody any more."""
        self._over = None
