"""What an answer carries so that its outcome can be told: which variant it was of, signed, and nothing kept meanwhile.

A token is good for the API key that got the answer, for a while, and as long as the box counts what it belongs to: it
is signed with a secret of the box's shared table, which ends with the counts. Pure.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct
from typing import Final, NamedTuple

_BODY: Final = Struct(">8sIB8s")  # arm, when in seconds of the box's clock, group of users, a draw
_SIGN_BYTES: Final = 15
NUM_CHARACTERS: Final = 48


class Token(NamedTuple):
    """arm: what stands for the variant and its beginning; at: the box's monotonic clock; draw: no two have one."""

    arm: bytes
    at: int
    group: int
    draw: bytes


def sign(token: Token, whose: str, secret: bytes) -> str:
    """The token as text."""
    body = _BODY.pack(*token)
    return urlsafe_b64encode(body + _signature(body, whose, secret)).decode()


def read(text: str, whose: str, secret: bytes) -> Token | None:
    """The token, or None if we have not given it to this key: by these very characters, since others that decode to the
    same bytes would be one more token to whoever hears each of them once."""
    if len(text) != NUM_CHARACTERS or not text.isascii() or "+" in text or "/" in text:
        return None
    try:
        data = urlsafe_b64decode(text)
    except ValueError:
        return None
    body = data[: _BODY.size]
    if len(data) != _BODY.size + _SIGN_BYTES or not compare_digest(data[_BODY.size :], _signature(body, whose, secret)):
        return None
    return Token(*_BODY.unpack(body))


def arm_id(place: str, beginning: float) -> bytes:
    """What stands for an arm since a beginning. place: what names it in the whole box."""
    return blake2b(f"{beginning:.0f} {place}".encode("utf-8", "surrogateescape"), digest_size=8).digest()


def _signature(body: bytes, whose: str, secret: bytes) -> bytes:
    return blake2b(body + whose.encode("utf-8", "surrogateescape"), digest_size=_SIGN_BYTES, key=secret).digest()
