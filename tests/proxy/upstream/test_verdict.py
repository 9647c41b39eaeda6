"""What an answer says of its upstream."""

from __future__ import annotations

import pytest

from proxy.upstream.verdict import FAILED, GOOD, MAX_RETRY_AFTER_S, Verdict, of_answer, retry_after_s

WALL = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("status", "field", "verdict"),
    [
        (200, None, GOOD),
        (404, b"10", GOOD),
        (500, b"10", FAILED),
        (502, None, FAILED),
        (503, None, Verdict(False, True)),
        (503, b"7", Verdict(False, True, 7.0)),
        (429, None, Verdict(None, True)),
        (429, b"7", Verdict(None, True, 7.0)),
    ],
)
def test_a_verdict(status: int, field: bytes | None, verdict: Verdict) -> None:
    assert of_answer(status, field, WALL) == verdict


def test_only_a_429_that_says_when_cools_its_server() -> None:
    assert of_answer(429, b"7", WALL).cools
    assert not any(of_answer(*answer, WALL).cools for answer in ((429, None), (503, b"7"), (200, b"7"), (429, b"0")))


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
