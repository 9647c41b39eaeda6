"""What a complete answer says of the upstream that gave it: good, failed, refused, and when to ask again. Pure.

Owns the reading of Retry-After (RFC 9110 §10.2.3: seconds, or a date), bounded, because a server may name any year.
"""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

MAX_RETRY_AFTER_S: Final = 3600.0


class Verdict(NamedTuple):
    """In the words of ``Permit.settle``: ok True, False, or None where it is neither. refused: the upstream takes no
    more now. retry_after_s: not before; 0.0: it did not say. cools: the server that said so shall be left out for
    ``retry_after_s``, and has not failed."""

    ok: bool | None
    refused: bool = False
    retry_after_s: float = 0.0

    @property
    def cools(self) -> bool:
        return self.ok is None and self.retry_after_s > 0


GOOD: Final = Verdict(True)
FAILED: Final = Verdict(False)
SILENT: Final = Verdict(None)  # the client left, or nothing was sent


def of_answer(status: int, retry_after: bytes | None, wall_now: float) -> Verdict:
    """The verdict on a complete answer. retry_after: the field's value, if there is one; wall_now: Unix time."""
    if status < 500 and status != 429:
        return GOOD
    if status not in (429, 503):
        return FAILED
    wait_s = retry_after_s(retry_after, wall_now) if retry_after is not None else 0.0
    return Verdict(None if status == 429 else False, True, wait_s)


def retry_after_s(value: bytes, wall_now: float) -> float:
    """Seconds until a Retry-After, at most MAX_RETRY_AFTER_S; 0.0: it is past, or not understood."""
    text = value.strip()
    if text.isdigit() and text.isascii():
        return min(float(text), MAX_RETRY_AFTER_S) if len(text) < 12 else MAX_RETRY_AFTER_S
    try:
        at = parsedate_to_datetime(text.decode("ascii"))
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)  # the asctime form names no zone
        return min(max(at.timestamp() - wall_now, 0.0), MAX_RETRY_AFTER_S)
    except (ValueError, OverflowError):
        return 0.0
