"""A request's JSON body, bounded and strict: bytes to a dict of plain values, or a refusal.

Refused: another media type or any content coding (415), more bytes than allowed (413), more than BODIES_TOGETHER
allow beside the bodies of others (503), a body that does not come (408), and as 400: what RFC 8259 does not allow (NaN,
Infinity), duplicate keys (two readers would see two requests), numbers out of range, lone surrogates (no UTF-8 can
carry them), nesting beyond MAX_DEPTH, more than MAX_BRACKETS, and anything but an object.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any, NoReturn

import numpy as np

from engine.errors import Kind, RequestError
from engine.http.incoming import Incoming
from engine.http.message import Request
from engine.serving import Serving

MAX_DEPTH = 64
MAX_BRACKETS = 1 << 18  # opening ones, those in strings too; the parser holds the GIL: 2.3 million arrays took it 1.4 s
# Escapes of halves of surrogate pairs, whole pairs included: without one no string can be wrong, for UTF-8 has none.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MAX_DIGITS = 40
BODIES_TOGETHER = 32  # of the largest size, of all requests that are being read and parsed
_READ_TIMEOUT_S = 60.0
_DIRECT_BYTES = 64 << 10  # what is missing of a body, from where on it is read into its place
_ALIGNMENT_BYTES = 64
PARSED_IN_THREAD_BYTES = 128 << 10  # smaller bodies parse faster than a thread is woken


async def read_object(request: Request, serving: Serving) -> dict[str, Any]:
    """The JSON object that ``request`` carries. Raises RequestError."""
    media_type = request.content_type
    if "content-type" in request.headers and not (media_type == "application/json" or media_type.endswith("+json")):
        raise RequestError(Kind.MEDIA_TYPE, "the body must be JSON; send Content-Type: application/json")
    async with Body(request, serving) as pieces:
        raw = b"".join(pieces)
        if len(raw) > PARSED_IN_THREAD_BYTES:
            return await asyncio.to_thread(parse_object, raw)
        return parse_object(raw)


class Body:
    """The body's bytes as they came, whatever they are; until the end of an ``async with`` block they count among those
    of all requests. Raises RequestError: 408, 413, 415 for a content coding, 503."""

    __slots__ = ("_align_at", "_num_bytes", "_pieces", "_request", "_serving")

    def __init__(self, request: Request, serving: Serving, *, align_at: int = 0) -> None:
        """align_at: where in a large body any datatype must be able to lie."""
        self._request = request
        self._serving = serving
        self._align_at = align_at
        self._pieces: list[bytes | memoryview] = []  # whoever has put them together may let go of them
        self._num_bytes = 0

    async def __aenter__(self) -> list[bytes | memoryview]:
        request = self._request
        if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            message = "compressed request bodies are not taken; send it without Content-Encoding"
            raise RequestError(Kind.MEDIA_TYPE, message)
        most = self._serving.max_body_bytes
        if (request.body.length or 0) > most:
            raise _too_large(most)
        try:
            self._take_all(most)
            if not request.body.complete:  # a small body comes with its head
                await self._read(most)
        except BaseException:
            self._let_go()
            raise
        return self._pieces

    async def __aexit__(self, *ended: object) -> None:
        self._let_go()

    async def _read(self, most: int) -> None:
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                body = self._request.body
                if (body.length or 0) - self._num_bytes > _DIRECT_BYTES:
                    self._read_into_place(body)
                while not body.complete:
                    await body.wait()
                    self._take_all(most)
        except TimeoutError:
            raise RequestError(Kind.TIMEOUT, f"the body did not arrive within {_READ_TIMEOUT_S:.0f} s") from None

    def _read_into_place(self, body: Incoming) -> None:
        """All of it in one piece: what has come, and behind it what comes. Memory is taken as it comes."""
        assert body.length is not None
        padding = -self._align_at % _ALIGNMENT_BYTES
        whole = np.empty(padding + body.length, np.uint8).data[padding:]
        whole[: self._num_bytes] = b"".join(self._pieces)
        self._pieces[:] = [whole]
        body.into(whole[self._num_bytes :])

    def _take_all(self, most: int) -> None:
        serving, body = self._serving, self._request.body
        pieces = body.take()
        size = sum(map(len, pieces)) + body.take_landed()
        self._pieces += pieces
        self._num_bytes += size
        serving.num_body_bytes += size
        if self._num_bytes > most:
            raise _too_large(most)
        if serving.num_body_bytes > most * BODIES_TOGETHER:
            message = f"requests of {most * BODIES_TOGETHER} bytes in all are being read; try again in 1 s"
            raise RequestError(Kind.OVERLOADED, message, retry_after_s=1)

    def _let_go(self) -> None:
        self._serving.num_body_bytes -= self._num_bytes


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in ``raw``, UTF-8. Raises RequestError (400)."""
    if raw.count(b"[") + raw.count(b"{") > MAX_BRACKETS:
        raise _not_json(f"it has more than {MAX_BRACKETS} opening brackets")
    try:
        value = _STRICT.decode(raw.decode("utf-8"))
        _check_depth(value)
        if _SURROGATE.search(raw):
            _check_text(value)
    except RequestError:
        raise
    except RecursionError:
        raise _nested_too_deep() from None
    except UnicodeDecodeError as error:
        raise _not_json(f"it is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise _not_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    if not isinstance(value, dict):
        raise RequestError(Kind.INVALID_JSON, "the body must be a JSON object")
    return value


def _too_large(most: int) -> RequestError:
    return RequestError(Kind.TOO_LARGE, f"the body is larger than {most} bytes; send less")


def _check_depth(value: Any) -> None:
    """Raises for a value that is nested too deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _nested_too_deep()


def _check_text(value: Any) -> None:
    """Raises for a string, anywhere in a value of bounded depth, that holds half of a surrogate pair."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _not_json("a string holds half of a surrogate pair") from None
    elif isinstance(value, dict):
        for key, child in value.items():
            _check_text(key)
            _check_text(child)
    elif isinstance(value, list):
        for child in value:
            _check_text(child)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _not_json("a key stands twice in one object")
    return result


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _not_json("a number is out of range")
    return value


def _int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise _not_json("a number has too many digits")
    return int(text)


def _refuse_constant(name: str) -> NoReturn:
    raise _not_json(f"{name} is not a JSON value")


def _not_json(why: str) -> RequestError:
    return RequestError(Kind.INVALID_JSON, f"the body is not JSON that can be taken: {why}")


def _nested_too_deep() -> RequestError:
    return RequestError(Kind.INVALID_JSON, f"the body is nested deeper than {MAX_DEPTH} levels")


_STRICT = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float, parse_int=_int
)
