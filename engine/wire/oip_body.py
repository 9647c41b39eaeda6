"""The body of an inference request: where its JSON ends, and its bytes in one place where tensors can lie as they are.

Owns the header Inference-Header-Content-Length (Triton's binary tensor data extension). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.errors import invalid

HEADER_LENGTH = "Inference-Header-Content-Length"
_ALIGNMENT_BYTES = 64
_COPIED_BYTES = 4096
_MAX_DIGITS = 19


def json_length(values: Sequence[str], body_bytes: int) -> int | None:
    """How many bytes of the body are JSON; None: all, for nothing says otherwise; 0: none, it is one tensor.

    values: of the header, as often as it was sent. Raises RequestError (400).
    """
    if not values:
        return None
    (value,) = values if len(values) == 1 else (",".join(values),)
    if not _is_number(value):
        raise invalid(f"{HEADER_LENGTH} must be one whole number of bytes")
    if int(value) > body_bytes:
        raise invalid(f"{HEADER_LENGTH} is {int(value)}, and the body has {body_bytes} bytes")
    return int(value)


def announced(value: str | None) -> int:
    """Where the binary data will begin, as far as the header can be trusted before there is a body; else 0."""
    return int(value) if value is not None and _is_number(value) else 0


def divide(pieces: list[bytes | memoryview], json_bytes: int) -> tuple[bytes, memoryview]:
    """The JSON and the binary data of a body; ``pieces`` is emptied. The latter begins where any datatype may lie, for
    which a body that is one memoryview was made; but for a small body, of which a tensor is copied sooner than that."""
    size = sum(map(len, pieces))
    first = pieces[0] if len(pieces) == 1 else b""
    if json_bytes == size:
        header = first if isinstance(first, bytes) and first else b"".join(pieces)
        pieces.clear()
        return header, memoryview(b"")
    if isinstance(first, memoryview):
        pieces.clear()
        return bytes(first[:json_bytes]), first[json_bytes:]
    if first and size <= _COPIED_BYTES:
        pieces.clear()
        return first[:json_bytes], memoryview(first)[json_bytes:]
    padding = -json_bytes % _ALIGNMENT_BYTES
    whole = np.empty(padding + size, np.uint8).data
    at = padding
    for piece in pieces:
        whole[at : at + len(piece)] = piece
        at += len(piece)
    pieces.clear()
    begins = padding + json_bytes
    return bytes(whole[padding:begins]), whole[begins:]


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS
