"""What passes to a client, kept beside: the bytes of one answer, up to a bound. Pure."""

from __future__ import annotations

from collections.abc import Callable

from proxy.answer_filter import AnswerFilter
from proxy.exchange import Exchange, Head


class Recorder(AnswerFilter):
    """A filter that changes nothing. over: told before the last byte passes. complete: the upstream's answer came to
    its end."""

    __slots__ = ("_left", "_limit_bytes", "_num_bytes", "_over", "_pieces", "complete")

    def __init__(self, limit_bytes: int, over: Callable[[], None]) -> None:
        self._limit_bytes = limit_bytes
        self._over = over
        self._left: int | None = None  # bytes until its last, where its length is known
        self._num_bytes = 0
        self._pieces: list[bytes] = []
        self.complete = False

    @property
    def body(self) -> bytes | None:
        """What has passed; None if that is more than the bound."""
        return b"".join(self._pieces) if self._num_bytes <= self._limit_bytes else None

    def head(self, x: Exchange, head: Head) -> None:
        self._left = head.content_length

    def data(self, data: bytes) -> bytes:
        if self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                self._over()
        self._num_bytes += len(data)
        if self._num_bytes <= self._limit_bytes:
            self._pieces.append(bytes(data))
        elif self._pieces:
            self._pieces = []
        return data

    def end(self) -> bytes:
        self._over()
        self.complete = True
        return b""

    def broken(self) -> None:
        self._pieces, self._num_bytes, self.complete = [], 0, False
