"""Every spelling of Retry-After, and what is none."""

from __future__ import annotations

import pytest

from proxy.upstream.retry_after import MAX_RETRY_AFTER_S, retry_after_s

WALL = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"0", 0.0),
        (b" 120 ", 120.0),
        (b"Sun, 06 Nov 1994 08:49:47 GMT", 10.0),
        (b"Sunday, 06-Nov-94 08:49:47 GMT", 10.0),
        (b"Sun Nov  6 08:49:47 1994", 10.0),
        (b"Sun, 06 Nov 1994 08:49:27 GMT", 0.0),
        (b"Sun, 06 Nov 2094 08:49:37 GMT", MAX_RETRY_AFTER_S),
        (b"9" * 400, MAX_RETRY_AFTER_S),
        (b"99999", MAX_RETRY_AFTER_S),
        (b"-1", 0.0),
        (b"1.5", 0.0),
        (b"soon", 0.0),
        (b"", 0.0),
        (b"\xff\xd9\xa1", 0.0),
        (b"Sun, 99 Nov 1994 08:49:47 GMT", 0.0),
    ],
)
def test_retry_after(value: bytes, seconds: float) -> None:
    assert retry_after_s(value, WALL) == seconds
