"""An answer that is kept to be given again, as an object and as bytes. Pure."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import orjson

from proxy.exchange import Head, Reply

#: Its presence tells a client that nothing was carried out this time.
REPLAYED = (b"Idempotent-Replayed", b"true")
FINGERPRINT_BYTES = 32
_SIZES = Struct("<II")  # of the head; of the body plus one, or 0: it was too large to be kept
_NOT_AGAIN = frozenset((b"date", b"content-length", b"x-envoy-attempt-count"))  # made anew, or of this time alone
#: What was left of limits then: now it is other numbers, which those who count tell.
_OF_LIMITS = (b"ratelimit", b"x-ratelimit-")


class StoredAnswer(NamedTuple):
    """fingerprint: of the request that it answers. body: None: it was larger than what is kept of one answer."""

    fingerprint: bytes
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes | None

    @classmethod
    def of(cls, fingerprint: bytes, head: Head, body: bytes | None) -> StoredAnswer:
        """The answer with this head, less what every answer gets of its own. Of one without its body nothing but the
        status is kept."""
        names = (field[0].lower() for field in head.headers)
        kept = [name not in _NOT_AGAIN and not name.startswith(_OF_LIMITS) for name in names]
        headers = tuple(field for field, stays in zip(head.headers, kept, strict=True) if stays)
        return cls(fingerprint, head.status, headers if body is not None else (), body)

    def reply(self) -> Reply:
        """The answer again."""
        return Reply(self.status, (*self.headers, REPLAYED), self.body or b"", is_answer=True)

    def encoded(self) -> bytes:
        """All of it as bytes."""
        fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.headers]
        head = orjson.dumps((self.status, fields))
        kept = self.body if self.body is not None else b""
        sizes = _SIZES.pack(len(head), 0 if self.body is None else len(kept) + 1)
        return b"".join((self.fingerprint, sizes, head, kept))

    @classmethod
    def decoded(cls, data: bytes) -> StoredAnswer:
        """The answer that was encoded. Raises ValueError if none was."""
        at = FINGERPRINT_BYTES + _SIZES.size
        if len(data) < at:
            raise ValueError("a kept answer is cut short")
        head_bytes, body_bytes = _SIZES.unpack_from(data, FINGERPRINT_BYTES)
        begin = at + head_bytes
        if len(data) != begin + max(0, body_bytes - 1):
            raise ValueError("a kept answer is not as long as it says")
        status, fields = orjson.loads(data[at:begin])
        headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in fields)
        return cls(data[:FINGERPRINT_BYTES], status, headers, data[begin:] if body_bytes else None)


#: What asks to be tried again, and what was not carried out because somebody may not: whoever may by now tries again.
_NOT_FINAL = frozenset((401, 402, 403, 407, 408, 425, 429))


def is_final(status: int) -> bool:
    """Whether a repetition would get this answer again: not what went wrong at the upstream, what it did for want of a
    right (its key may be the operator's to mend), nor what asks to be tried again."""
    return 200 <= status < 500 and status not in _NOT_FINAL
