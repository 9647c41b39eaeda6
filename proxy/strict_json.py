"""JSON as two readers cannot disagree about it: bytes to plain values, or None. Pure.

Refused: what RFC 8259 does not allow (NaN, Infinity), a key that stands twice in one object, numbers out of range, lone
surrogates, a byte order mark, nesting beyond MAX_DEPTH and more than MAX_BRACKETS. orjson keeps silent about a key that
stands twice, so keys are counted: an object that has fewer than the text has colons behind quotes is read once more,
by the slower parser that tells of every pair.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import orjson

MAX_DEPTH: Final = 64
MAX_BRACKETS: Final = 1 << 18  # opening ones, those in strings too: what a small text becomes is bounded

_SPACED_COLON: Final = re.compile(rb'"[ \t\r\n]+:')


class _Doubled(ValueError):
    """A key stands twice in one object."""


def parse_strict(raw: bytes) -> dict[str, Any] | list[Any] | None:
    """The object or array in ``raw``; None if it holds none, or not one that everybody reads alike."""
    if raw.count(b"[") + raw.count(b"{") > MAX_BRACKETS:
        return None
    try:
        value = orjson.loads(raw)
        if not isinstance(value, dict | list):
            return None
        num_keys = _count_keys(value)
        # A string may hold a colon behind a quote, so there may be more of these than keys; never fewer.
        if num_keys != raw.count(b'":') or _SPACED_COLON.search(raw) is not None:
            _PAIRS.decode(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return value


def _count_keys(value: dict[str, Any] | list[Any]) -> int:
    """Keys of all objects in a value. Raises ValueError for one that is nested too deep."""
    num_keys = 0
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                num_keys += len(item)
                item = item.values()
            for child in item:
                if isinstance(child, dict | list):
                    below.append(child)
        if not below:
            return num_keys
        level = below
    raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def _no_doubles(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise _Doubled


_PAIRS: Final = json.JSONDecoder(object_pairs_hook=_no_doubles)
