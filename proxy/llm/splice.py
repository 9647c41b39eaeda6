"""One member of a JSON object replaced in its bytes, and no other byte touched. Pure.

What a client wrote is sent as it was written: numbers keep their spelling, and text its escapes. The bytes must be a
JSON object that was parsed before, strictly, with no name twice: what is not valid is not noticed here.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

_STRING: Final = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_NAME: Final = re.compile(rb"[ \t\r\n]*(%b)[ \t\r\n]*:[ \t\r\n]*" % _STRING, re.DOTALL)
_SCALAR: Final = re.compile(rb"%b|[^\[\]{},: \t\r\n]+" % _STRING, re.DOTALL)
_MARK: Final = re.compile(rb"%b|[\[\]{}]" % _STRING, re.DOTALL)
_AFTER: Final = re.compile(rb"[ \t\r\n]*,")
_OPENS: Final = b"[{"


def with_member(body: bytes, name: str, value: bytes) -> bytes:
    """The object with ``name`` set to ``value`` (JSON): in its place, or in front of the others where it is not yet."""
    found = find_member(body, name)
    if found is not None:
        return body[: found[0]] + value + body[found[1] :]
    return with_first_member(body, name, value)


def with_first_member(body: bytes, name: str, value: bytes) -> bytes:
    """The object with ``name``, which it does not have yet, in front of its other members: nothing is searched."""
    at = body.index(b"{") + 1
    behind = body[at:]
    comma = b"" if behind.lstrip(b" \t\r\n").startswith(b"}") else b","
    return b"%b%b:%b%b%b" % (body[:at], orjson.dumps(name), value, comma, behind)


def find_member(body: bytes, name: str) -> tuple[int, int] | None:
    """Where the value of ``name`` begins and ends, or None if the object has no such member."""
    at = body.index(b"{") + 1
    while (found := _NAME.match(body, at)) is not None:
        begin = found.end()
        end = _end_of(body, begin)
        if orjson.loads(found[1]) == name:
            return begin, end
        after = _AFTER.match(body, end)
        if after is None:
            return None
        at = after.end()
    return None


def _end_of(body: bytes, begin: int) -> int:
    """Where the value ends that begins here."""
    if body[begin] not in _OPENS:
        scalar = _SCALAR.match(body, begin)
        assert scalar is not None
        return scalar.end()
    depth = 0
    for mark in _MARK.finditer(body, begin):
        kind = body[mark.start()]
        if kind in _OPENS:
            depth += 1
        elif kind != 0x22:
            depth -= 1
            if not depth:
                return mark.end()
    raise ValueError("the value has no end")
