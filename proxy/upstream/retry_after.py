"""What Retry-After asks for (RFC 9110 §10.2.3): seconds or a date, bounded, for a server may name any year. Pure."""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

MAX_RETRY_AFTER_S: Final = 3600.0


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
