"""Exact rate limiting for many keys: GCRA on a virtual clock. Pure.

Theory. GCRA keeps one number per key, the instant at which its bucket will be full again, and lets a request pass if
that instant, moved on by one emission interval, is no further ahead than the burst. Here the instants are told on a
clock that counts emissions instead of seconds: it advances ``count`` units in ``per_s`` seconds, so a key's number
minus the clock is how many of its requests are not yet forgiven. When a reload changes the rate, only the clock changes
its pace; what every key has used stays exactly used, whether the limit was lowered or raised (nobody gets a free
bucket).

Memory is bounded: when the table is full, keys whose bucket is full again make room, found by a hand that moves round
the table. While there is none, new keys share one common bucket, and a key that finds room afterwards starts with what
the common one has used: no key is ever forgiven to make room.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_KEYS = 65536
_EVICTION_STEPS = 16  # keys looked at per new key when the table is full
_EPSILON = 1e-6  # of one request: the rounding of sums of floats


class Terms(NamedTuple):
    """``events`` requests in ``per_s`` seconds, at most ``burst`` at once."""

    events: int
    per_s: float
    burst: int


class Gcra:
    """One named limit's memory: what every key has used."""

    __slots__ = ("_burst", "_clock", "_full_at", "_max_keys", "_overflow_full_at", "_rate", "_read_at", "terms")

    def __init__(self, terms: Terms, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._clock = 0.0  # units, at _read_at
        self._read_at = 0.0
        self._full_at: dict[str, float] = {}  # key -> clock reading at which its bucket is full again
        self._overflow_full_at = 0.0
        self._take_terms(terms)

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._full_at)

    def _take_terms(self, terms: Terms) -> None:
        self.terms = terms
        self._rate = terms.events / terms.per_s  # units per second
        self._burst = terms.burst

    def change(self, terms: Terms, now: float) -> None:
        """Take other terms from ``now`` on; every key keeps what it has used."""
        self._clock = self._clock + (now - self._read_at) * self._rate
        self._read_at = now
        self._take_terms(terms)

    def used(self, key: str, now: float) -> float:
        """Requests of ``key`` not yet forgiven, to be handed to ``take`` at the same ``now``.

        More than ``burst`` only after the limit was lowered.
        """
        clock = self._clock + (now - self._read_at) * self._rate
        full_at = self._full_at.get(key)
        if full_at is None:
            full_at = self._overflow_full_at
            if len(self._full_at) >= self._max_keys:
                self._make_room(clock)
        used = full_at - clock
        return used if used > 0.0 else 0.0

    def fits(self, used: float) -> bool:
        """Whether one more request passes, given what its key has used."""
        return used + 1.0 <= self._burst + _EPSILON

    def take(self, key: str, used: float, now: float) -> float:
        """Count one request of ``key``, which had ``used`` that many before; returns how many it has now."""
        used += 1.0
        full_at = self._clock + (now - self._read_at) * self._rate + used
        table = self._full_at
        if key in table or len(table) < self._max_keys:
            table[key] = full_at
        else:
            self._overflow_full_at = full_at
        return used

    def remaining(self, used: float) -> int:
        """Whole requests that fit now: never negative."""
        left = int(self._burst - used + _EPSILON)
        return left if left > 0 else 0

    def wait_s(self, used: float) -> float:
        """Seconds until one more request fits; 0.0: now."""
        return max(0.0, used + 1.0 - self._burst) / self._rate

    def reset_s(self, used: float) -> float:
        """Seconds until something changes for the better: the next request if none is left, else a full bucket."""
        if used + 1.0 > self._burst + _EPSILON:
            return self.wait_s(used)
        return used / self._rate

    def _make_room(self, clock: float) -> None:
        table = self._full_at
        for _ in range(min(_EVICTION_STEPS, len(table))):
            key = next(iter(table))
            full_at = table.pop(key)
            if full_at <= clock:
                return
            table[key] = full_at  # behind the hand
