"""The head of an answer as bytes. Pure, but for what Date says."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from time import time
from typing import Any, Final

_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


def render(status: int, framing: str, headers: Mapping[str, Any] | None, connection: str) -> bytes:
    """framing and connection: header lines, each with its end, or nothing. Raises ValueError for a header that would
    be two."""
    lines = [_LINES.get(status) or f"HTTP/1.1 {status} Unknown\r\n", framing]
    if headers:
        for name, value in headers.items():
            line = f"{name}: {value}"
            if "\r" in line or "\n" in line:
                raise ValueError(f"the header {name!r} holds the end of a line")
            lines.append(line + "\r\n")
    lines.append(_date(int(time())))
    lines.append(connection)
    return "".join(lines).encode()


def connection_line(version: str, keep_alive: bool) -> str:
    """What is said of the connection, nothing where its version says it (RFC 9112 9.3); then the end of the head."""
    if not keep_alive:
        return "Connection: close\r\n\r\n"
    return "\r\n" if version == "1.1" else "Connection: keep-alive\r\n\r\n"


@lru_cache(maxsize=1)  # all answers of one second carry the same
def _date(wall_s: int) -> str:
    return f"Date: {formatdate(wall_s, usegmt=True)}\r\n"
