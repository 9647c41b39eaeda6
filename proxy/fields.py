"""Structured fields (RFC 9651) and the spellings of limits that clients read. Pure.

Owns the bytes of RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-11: Lists of Strings with
parameters) and the Go-style durations of OpenAI's fields. Only what is sent is here: nothing is parsed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

_MAX_INTEGER: Final = 999_999_999_999_999  # fifteen digits, RFC 9651 §3.3.1


def sf_string(text: str) -> str:
    """A String: quoted, with backslash and quote escaped. Raises ValueError outside printable ASCII (§4.1.6)."""
    if not (text.isascii() and text.isprintable()):
        raise ValueError(f"{text!r} is not printable ASCII and cannot be a structured-field String")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def sf_item(name: str, parameters: Mapping[str, int | str]) -> bytes:
    """A String item with Integer or String parameters: ``"burst";q=100;w=60``. Raises ValueError on what has no such
    form."""
    return (sf_string(name) + "".join([f";{key}={_sf_value(value)}" for key, value in parameters.items()])).encode()


def _sf_value(value: int | str) -> str:
    if isinstance(value, str):
        return sf_string(value)
    if abs(value) > _MAX_INTEGER:
        raise ValueError(f"a structured-field Integer has at most fifteen digits: {value}")
    return str(value)


def go_duration(seconds: float) -> str:
    """A Go-style duration, rounded up to a millisecond: ``0s``, ``120ms``, ``1.5s``, ``6m0s``, ``1h0m0s``."""
    millis = max(0, math.ceil(seconds * 1000 - 1e-6))
    if 0 < millis < 1000:
        return f"{millis}ms"
    whole, millis = divmod(millis, 1000)
    minutes, whole = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{whole}.{millis:03d}".rstrip("0") + "s" if millis else f"{whole}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
