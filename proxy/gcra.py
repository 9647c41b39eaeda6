"""Exact rate limiting for many keys: GCRA on a virtual clock. Pure.

Theory. GCRA keeps one number per key, the instant at which its bucket will be full again, and lets a request pass if
that instant, moved on by one emission interval, is no further ahead than the burst. Here the instants are told on a
clock that counts emissions instead of seconds: it advances ``count`` units in ``per_s`` seconds, so a key's number
minus the clock is how many of its requests are not yet forgiven. When a reload changes the rate, only the clock changes
its pace; what every key has used stays exactly used, whether the limit was lowered or raised (nobody gets a free
bucket).

The numbers stand in memory that all workers share (proxy.shared.limit). Here is what a number means.
"""

from __future__ import annotations

from typing import Final, NamedTuple

EPSILON: Final = 1e-6  # of one request: the rounding of sums of floats


class Terms(NamedTuple):
    """``events`` requests in ``per_s`` seconds, at most ``burst`` at once."""

    events: int
    per_s: float
    burst: int


class Gcra:
    """A limit's terms as arithmetic. ``used``: requests not yet forgiven, of which a whole burst may be."""

    __slots__ = ("burst", "rate", "terms")

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.rate = terms.events / terms.per_s  # units per second
        self.burst = terms.burst

    def fits(self, used: float) -> bool:
        """Whether one more request passes, given what its key has used."""
        return used + 1.0 <= self.burst + EPSILON

    def remaining(self, used: float) -> int:
        """Whole requests that fit now: never negative, even if more than ``burst`` is used (the limit was lowered)."""
        left = int(self.burst - used + EPSILON)
        return left if left > 0 else 0

    def wait_s(self, used: float) -> float:
        """Seconds until one more request fits; 0.0: now."""
        return max(0.0, used + 1.0 - self.burst) / self.rate

    def reset_s(self, used: float) -> float:
        """Seconds until something changes for the better: the next request if none is left, else a full bucket."""
        if used + 1.0 > self.burst + EPSILON:
            return self.wait_s(used)
        return used / self.rate
