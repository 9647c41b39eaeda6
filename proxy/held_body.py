"""A request body that policies read before anybody decides: held as a whole, bounded, and then sent as it was read.

Owns the way from the client's pieces to bytes and JSON, and why there are none. Whatever is read here is counted: for
the request, and for all requests of the worker together. Judges nothing that the body says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

from aiohttp.streams import EMPTY_PAYLOAD

from proxy.body import BodyBroken, RequestBody
from proxy.errors import Kind, refuse, too_large
from proxy.exchange import Ending, Exchange, Reply
from proxy.strict_json import parse_strict
from proxy.units import spell_size

if TYPE_CHECKING:
    from proxy.llm.request import LlmRequest

HELD_BYTES = 8 << 20  # of one body
HELD_TOGETHER_BYTES = 256 << 20  # of all requests of a worker
PARSED_IN_THREAD_BYTES = 64 << 10  # smaller bodies parse faster than a thread is woken
NUM_THREADS = 2
_BUSY_RETRY_S = 1.0


class HeldBytes:
    """How many bytes the bodies held by one worker have together."""

    def __init__(self, max_bytes: int = HELD_TOGETHER_BYTES) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0


@cache
def body_threads() -> ThreadPoolExecutor:
    """The threads of this process for what takes long with a long body. What waits for one is held, so it is bounded
    by HELD_TOGETHER_BYTES."""
    return ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="bodies")


class HeldBody:
    """The body of one exchange, for policies that read it (``Policy.reads_body``).

    data: what goes upstream, once it was read; None before. refusal: why it could not be read; whoever forwards answers
    with it, no policy need look. proceed: tells the client to send the body, if it waits for that.
    """

    __slots__ = ("_body", "_json", "_llm", "_num_held", "_parsed", "_proceed", "_together", "_viewed", "_x", "data",
                 "ending", "refusal")  # fmt: skip

    def __init__(
        self, x: Exchange, body: RequestBody, together: HeldBytes, proceed: Callable[[], None] | None = None
    ) -> None:
        self._x: Exchange | None = x
        self._body: RequestBody | None = body
        self._together = together
        self._proceed = proceed
        self._num_held = 0
        self._parsed = self._viewed = False
        self._json: dict[str, Any] | list[Any] | None = None
        self._llm: LlmRequest | None = None
        self.data: bytes | None = None
        self.refusal: Reply | None = None
        self.ending = Ending.REFUSED

    @classmethod
    def made(cls, x: Exchange, data: bytes, document: dict[str, Any]) -> HeldBody:
        """A body that was made here. document: what it is as JSON."""
        body = cls(x, RequestBody(EMPTY_PAYLOAD), HeldBytes())
        body.data = data
        body._json, body._parsed = document, True
        return body

    async def read(self, limit_bytes: int = HELD_BYTES) -> bytes:
        """The whole body, read once; b"" if it could not be read, which ``refusal`` explains then."""
        if self.read_at_once(limit_bytes) is None:
            await self._read(limit_bytes)
        return self.data or b""

    def read_at_once(self, limit_bytes: int = HELD_BYTES) -> bytes | None:
        """As ``read``, where nothing need be waited for; None: ``read`` must be."""
        if self.data is None and self.refusal is None:
            if self._body is None or not self._body.complete:
                return None
            self._read_received(limit_bytes)
        return self.data or b""

    async def read_json(self, limit_bytes: int = HELD_BYTES) -> dict[str, Any] | list[Any] | None:
        """The body as JSON, read and parsed once, a long one off the loop; None if it is none (``strict_json``)."""
        data = await self.read(limit_bytes)
        if not self.json_at_once(limit_bytes):
            assert self._x is not None
            loop, path = asyncio.get_running_loop(), self._x.path
            self._json, self._llm = await loop.run_in_executor(body_threads(), _read_long, path, data)
            self._parsed = self._viewed = True
        return self._json

    def json_at_once(self, limit_bytes: int = HELD_BYTES) -> bool:
        """Whether ``json`` is there now: ``read_json`` is done, where nothing need be waited for; else it must be."""
        data = self.read_at_once(limit_bytes)
        if data is None:
            return False
        if not self._parsed:
            if len(data) > PARSED_IN_THREAD_BYTES:
                return False
            self._json, self._parsed = parse_strict(data), True
        return True

    @property
    def json(self) -> dict[str, Any] | list[Any] | None:
        """What ``read_json`` returned; None before. Not to be changed: others read it, too."""
        return self._json

    @property
    def llm(self) -> LlmRequest | None:
        """What the JSON asks of a language model, None if it asks nothing of one, or before ``read_json``."""
        if not self._viewed and self._parsed and self._x is not None:
            from proxy.llm.request import view_request

            self._llm, self._viewed = view_request(self._x.path, self._json), True
        return self._llm

    def replace(self, data: bytes) -> None:
        """Send this upstream instead. ``json`` and ``llm`` stay those of what the client sent."""
        self.data = data
        assert self._x is not None
        self._x.content_length = len(data)

    def release(self) -> None:
        """The exchange is settled: let go of the bytes."""
        self._together.num_bytes -= self._num_held
        self._num_held = 0
        self.data = self._x = self._body = self._proceed = None

    async def _read(self, limit_bytes: int) -> None:
        """What is still to come."""
        x, body = self._x, self._body
        assert x is not None
        assert body is not None
        if x.content_length is not None and x.content_length > limit_bytes:
            self.refusal = self._too_long(x, limit_bytes)
            return
        if self._proceed is not None:
            self._proceed()
        pieces: list[bytes] = []
        try:
            while self.refusal is None and (piece := await body.read()):
                self._take(x, piece, limit_bytes, pieces)
        except BodyBroken as error:
            self._broken(x, error)
        if self.refusal is None:
            self.replace(b"".join(pieces))

    def _read_received(self, limit_bytes: int) -> None:
        """What is there as a whole."""
        x, body = self._x, self._body
        assert x is not None
        assert body is not None
        if x.content_length is not None and x.content_length > limit_bytes:
            self.refusal = self._too_long(x, limit_bytes)
            return
        pieces: list[bytes] = []
        try:
            self._take(x, body.take(), limit_bytes, pieces)
        except BodyBroken as error:
            self._broken(x, error)
        if self.refusal is None:
            self.replace(pieces[0])

    def _broken(self, x: Exchange, error: BodyBroken) -> None:
        self.ending = Ending.CLIENT_ERROR
        self.refusal = refuse(x, error.refusal.kind, error.refusal.message, close=True)

    def _take(self, x: Exchange, piece: bytes, limit_bytes: int, pieces: list[bytes]) -> None:
        pieces.append(piece)
        size = len(piece)
        x.bytes_in += size
        self._num_held += size
        together = self._together
        together.num_bytes += size
        if x.body_limit_bytes is not None and x.bytes_in > x.body_limit_bytes:
            self.refusal = too_large(x, x.body_limit_bytes)
        elif self._num_held > limit_bytes:
            self.refusal = self._too_long(x, limit_bytes)
        elif together.num_bytes > together.max_bytes:
            message = (
                f"Request bodies of {spell_size(together.max_bytes)} in all are being read here. "
                f"Try again in {_BUSY_RETRY_S:g} s."
            )
            self.refusal = refuse(
                x, Kind.CAPACITY, message, retry_after_s=_BUSY_RETRY_S, violated=("held_bodies",), close=True
            )

    @staticmethod
    def _too_long(x: Exchange, limit_bytes: int) -> Reply:
        message = (
            f"The request body is larger than the {spell_size(limit_bytes)} that are read here. Send less at once."
        )
        return refuse(x, Kind.TOO_LARGE, message, close=True)


def _read_long(path: str, data: bytes) -> tuple[dict[str, Any] | list[Any] | None, LlmRequest | None]:
    """A long body as JSON, and what it asks of a language model, which takes long too where it has many messages."""
    from proxy.llm.request import view_request

    value = parse_strict(data)
    return value, view_request(path, value)
