"""Exact rate limiting for many keys: GCRA on a virtual clock. Pure.

Theory. GCRA keeps one number per key, the instant at which its bucket will be full again, and lets a request pass if
that instant, moved on by one emission interval, is no further ahead than the burst. Here the instants are told on a
clock that counts emissions instead of seconds: it advances ``count`` units in ``per_s`` seconds, so a key's number
minus the clock is how many of its requests are not yet forgiven. When a reload changes the rate, only the clock changes
its pace; what every key has used stays exactly used, whether the limit was lowered or raised (nobody gets a free
bucket).

Memory is bounded: when the table is full, keys whose bucket is full again make room, found by a hand that moves round
the table. If there is none, new keys share one common bucket: no key is ever forgiven to make room.
"""

from __future__ import annotations

MAX_KEYS = 65536
_EVICTION_STEPS = 16  # keys looked at per new key when the table is full
_EPSILON = 1e-6  # of one request: the rounding of sums of floats


class Gcra:
    """One named limit's memory. ``count`` requests in ``per_s`` seconds, at most ``burst`` at once."""

    def __init__(self, count: int, per_s: float, burst: int, max_keys: int = MAX_KEYS) -> None:
        self.rate = count / per_s  # units per second
        self.burst = burst
        self._max_keys = max_keys
        self._clock = 0.0  # units, at _read_at
        self._read_at = 0.0
        self._full_at: dict[str, float] = {}  # key -> clock reading at which its bucket is full again
        self._overflow_full_at = 0.0

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._full_at)

    def configure(self, count: int, per_s: float, burst: int, now: float) -> None:
        """Take another rate and burst from ``now`` on; every key keeps what it has used."""
        self._clock = self._units(now)
        self._read_at = now
        self.rate = count / per_s
        self.burst = burst

    def used(self, key: str, now: float) -> float:
        """Requests of ``key`` not yet forgiven; a little more than ``burst`` after the limit was lowered."""
        clock = self._clock + (now - self._read_at) * self.rate
        full_at = self._full_at.get(key)
        if full_at is None:
            full_at = self._overflow_full_at if len(self._full_at) >= self._max_keys else 0.0
        return full_at - clock if full_at > clock else 0.0

    def fits(self, used: float) -> bool:
        """Whether one more request passes, given what its key has used."""
        return used + 1.0 <= self.burst + _EPSILON

    def take(self, key: str, used: float, now: float) -> None:
        """Count one request of ``key`` that passed."""
        clock = self._clock + (now - self._read_at) * self.rate
        table = self._full_at
        if key not in table and len(table) >= self._max_keys and not self._make_room(clock):
            self._overflow_full_at = max(self._overflow_full_at, clock) + 1.0
            return
        table[key] = clock + used + 1.0

    def wait_s(self, used: float, room: float = 1.0) -> float:
        """Seconds until ``room`` requests fit; the whole burst: until the bucket is full."""
        return max(0.0, used + room - self.burst) / self.rate

    def _units(self, now: float) -> float:
        return self._clock + (now - self._read_at) * self.rate

    def _make_room(self, clock: float) -> bool:
        table = self._full_at
        for _ in range(min(_EVICTION_STEPS, len(table))):
            key = next(iter(table))
            full_at = table.pop(key)
            if full_at <= clock:
                return True
            table[key] = full_at  # behind the hand
        return False
