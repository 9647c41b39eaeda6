"""Idempotency keys: how a request names itself, whose name that is, and what makes two requests the same. Pure.

The field is ``Idempotency-Key`` (draft-ietf-httpapi-idempotency-key-header-07) or ``X-Idempotency-Key``; the draft's
quoted String and the bare text that most clients send name the same. Two requests are the same if method, path, query,
Content-Type and every byte of the body are: JSON that is only spaced differently is another request. Whoever repeats a
request has its bytes, and no rule about JSON (numbers, doubled members, order) can then call different things equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

MAX_KEY_CHARACTERS = 255

_NAMES = frozenset((b"idempotency-key", b"x-idempotency-key"))
_LENGTHS = frozenset(map(len, _NAMES))
_BARE = re.compile(rb"[\x21\x23-\x7e][\x20-\x7e]*")
_QUOTED = re.compile(rb'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')  # RFC 9651 §3.3.3


class BadKey(ValueError):
    """The field cannot be used; the message says why and does not repeat it."""


def key_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The request's key, None if it has none. Raises BadKey."""
    found = {value.strip(b" \t") for name, value in headers if len(name) in _LENGTHS and name.lower() in _NAMES}
    if not found:
        return None
    if len(found) > 1:
        raise BadKey("The request carries several idempotency keys; send one.")
    text = found.pop()
    quoted = _QUOTED.fullmatch(text)
    if quoted is not None:
        key = quoted[1].replace(b'\\"', b'"').replace(b"\\\\", b"\\")
    elif _BARE.fullmatch(text):
        key = text
    elif not text:
        raise BadKey("The idempotency key is empty; send a name of the request's own, for example a UUID.")
    else:
        raise BadKey("The idempotency key is not printable ASCII, or its quotes do not match; send for example a UUID.")
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise BadKey(f"The idempotency key has {len(key)} characters; it may have 1 to {MAX_KEY_CHARACTERS}.")
    return key


def place_of(route: str, whose: str, key: bytes) -> bytes:
    """Where the answer to this request is kept: 32 bytes from which neither key nor sender can be read."""
    return _digest([route.encode("utf-8", "surrogateescape"), whose.encode("utf-8", "surrogateescape")], key)


def fingerprint(method: str, path: str, query: str, content_type: str, body: bytes) -> bytes:
    """What the request is: 32 bytes, equal for the same request alone."""
    texts = [text.encode("utf-8", "surrogateescape") for text in (method, path, query, content_type)]
    return _digest(texts, body)


def _digest(parts: list[bytes], last: bytes) -> bytes:
    """Of the parts and the last one, which may be long. Lengths first, so that no part can pass for two."""
    begin = b"".join([b"%d:%b" % (len(part), part) for part in parts])
    digest = sha256(b"%b%d:" % (begin, len(last)))
    digest.update(last)
    return digest.digest()
