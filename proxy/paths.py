"""One decision about a request's path: what is matched and what is sent upstream. Pure.

Dot segments are resolved in both, also spelt ``%2e``, so that ``/public/../admin`` is matched as what it is and no
upstream resolves it again. Beyond that the upstream receives the client's bytes, because signed URLs break otherwise;
``//`` and escapes of unreserved characters are folded only for matching (RFC 3986 §5.2.4, §6.2.2). What two parsers
are known to read differently is refused: ``%2F``, ``%5C``, ``%00``, a backslash, a fragment, an escape that is none,
anything outside visible ASCII, and ``..;`` (some servers cut a segment at its semicolon before resolving dots).
Where a route allows an escaped slash it stays one in both, part of its segment, but dots beside it are refused: whoever
takes it for a slash would resolve them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_PLAIN: Final = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+/?|/")
#: Short paths come again and again: whether one is plain is remembered.
_SHORT: Final = 128
_AMBIGUOUS: Final = re.compile(r"%2f|%5c|%00", re.IGNORECASE)
_NEVER: Final = re.compile(r"%5c|%00", re.IGNORECASE)
_ESCAPED_SLASH: Final = re.compile(r"%2f", re.IGNORECASE)
_BAD_CHARACTER: Final = re.compile(r"[^!-~]|[\\#?]")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ESCAPE: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_SLASHES: Final = re.compile(r"/{2,}")
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class BadPath(ValueError):
    """The path could be read in two ways. The message names the reason, never the path."""


def normalise(path: str, *, encoded_slash: bool = False) -> tuple[str, str]:
    """(match, send) of a request target's path, without query. encoded_slash: let ``%2F`` pass. Raises BadPath."""
    if _is_plain(path) if len(path) <= _SHORT else _PLAIN.fullmatch(path):
        return path, path
    _check(path, _NEVER if encoded_slash else _AMBIGUOUS)
    if encoded_slash:
        _check_dots_beside_slashes(path)
    send = _without_dot_segments(path) if "." in path or "%2" in path else path
    return _SLASHES.sub("/", _ESCAPE.sub(_fold, send)), send


@lru_cache(maxsize=4096)
def _is_plain(path: str) -> bool:
    return _PLAIN.fullmatch(path) is not None


def _check(path: str, refused: re.Pattern[str]) -> None:
    if not path.startswith("/"):
        raise BadPath("the path does not begin with a slash")
    if _BAD_CHARACTER.search(path):
        raise BadPath("the path contains a backslash, a fragment or a character outside visible ASCII")
    if _BAD_ESCAPE.search(path):
        raise BadPath("the path contains a % that is not followed by two hexadecimal digits")
    if refused.search(path):
        raise BadPath("the path contains an escaped slash, backslash or NUL")


def _check_dots_beside_slashes(path: str) -> None:
    for segment in path.split("/"):
        parts = _ESCAPED_SLASH.split(segment.replace("%2e", ".").replace("%2E", "."))
        if len(parts) > 1 and not all(part.partition(";")[0] not in ("", ".", "..") for part in parts):
            raise BadPath("the path contains an escaped slash beside dots or another slash")


def _without_dot_segments(path: str) -> str:
    kept: list[str] = []
    segments = path.split("/")[1:]
    last = len(segments) - 1
    for i, segment in enumerate(segments):
        plain = segment.replace("%2e", ".").replace("%2E", ".")
        if plain.partition(";")[0] in (".", "..") and ";" in plain:
            raise BadPath("the path contains a dot segment with a parameter")
        if plain not in (".", ".."):
            kept.append(segment)
            continue
        if plain == ".." and kept:
            kept.pop()
        if i == last:
            kept.append("")  # "/a/.." is the directory "/", "/a/." is "/a/"
    return "/" + "/".join(kept)


def _fold(escape: re.Match[str]) -> str:
    character = chr(int(escape[0][1:], 16))
    return character if character in _UNRESERVED else escape[0].upper()
