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
    """A limit's terms as arithmetic. ``used``: what is not yet forgiven, of which a whole burst may be. ``cost``: what
    one request uses: 1 of a limit on requests, its tokens of a limit on tokens."""

    __slots__ = ("burst", "rate", "terms")

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.rate = terms.events / terms.per_s  # units per second
        self.burst = terms.burst

    def fits(self, used: float, cost: float = 1.0) -> bool:
        """Whether one more request passes, given what its key has used."""
        return used + cost <= self.burst + EPSILON

    def remaining(self, used: float) -> int:
        """What fits now, in whole units: never negative, even if more than ``burst`` is used (a limit was lowered)."""
        left = int(self.burst - used + EPSILON)
        return left if left > 0 else 0

    def wait_s(self, used: float, cost: float = 1.0) -> float:
        """Seconds until one more request fits, if it ever does; 0.0: now."""
        return max(0.0, used + cost - self.burst) / self.rate

    def reset_s(self, used: float, cost: float = 1.0) -> float:
        """Seconds until something changes for the better: this request if it does not fit, else a full bucket."""
        if used + cost > self.burst + EPSILON:
            return self.wait_s(used, cost)
        return used / self.rate
