"""Binary data written as text in JSON: base64 (RFC 4648 section 4), alone or in a data URL (RFC 2397).

Pure. Decoded in pieces, between which other threads may run: the decoder itself lets none.
"""

from __future__ import annotations

import binascii

_PIECE = 1 << 17  # characters, a multiple of four: 0.5 ms


def decode_base64(text: str) -> bytes:
    """The bytes. Raises ValueError, whose message goes on where a sentence says which text it is.

    Strict: no other alphabet, no line breaks, whole groups of four. The media type that a data URL names is not looked
    at, since the data says itself what it is.
    """
    if text.startswith(("http://", "https://")):
        raise ValueError("is an address, and nothing is fetched from there; send the data itself")
    start = 0
    if text.startswith("data:"):
        start = text.find(",") + 1
        if not text[:start].endswith(";base64,"):
            raise ValueError("is a data URL that is not in base64")
    try:
        pieces = [
            binascii.a2b_base64(text[at : at + _PIECE], strict_mode=True) for at in range(start, len(text), _PIECE)
        ]
    except ValueError as error:
        raise ValueError(f"is not base64 ({error})") from None
    if any(len(piece) % 3 for piece in pieces[:-1]):
        raise ValueError("is not base64 (it ends before the text does)")
    return b"".join(pieces)
