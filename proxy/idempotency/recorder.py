"""What passes to a client, kept beside: the bytes of one answer, up to a bound. Pure."""

from __future__ import annotations

from proxy.answer_filter import AnswerFilter


class Recorder(AnswerFilter):
    """A filter that changes nothing. complete: the upstream's answer came to its end."""

    __slots__ = ("_limit_bytes", "_num_bytes", "_pieces", "complete")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._num_bytes = 0
        self._pieces: list[bytes] = []
        self.complete = False

    @property
    def body(self) -> bytes | None:
        """What has passed; None if that is more than the bound."""
        return b"".join(self._pieces) if self._num_bytes <= self._limit_bytes else None

    def data(self, data: bytes) -> bytes:
        self._num_bytes += len(data)
        if self._num_bytes <= self._limit_bytes:
            self._pieces.append(bytes(data))
        elif self._pieces:
            self._pieces = []
        return data

    def end(self) -> bytes:
        self.complete = True
        return b""

    def broken(self) -> None:
        self._pieces, self._num_bytes, self.complete = [], 0, False
