"""How many requests one model takes in at a time, and when one that found no place should come back.

Pure: ``now`` is an argument. A place is taken when a request is accepted (before any byte of an answer) and given back
when its job has ended, whatever the end was.
"""

from __future__ import annotations

_SMOOTHING = 0.1  # weight of the newest interval between two departures
_LONGEST_S = 60.0


class Admission:
    """``running`` places on the device and ``queue`` places to wait in."""

    def __init__(self, *, running: int, queue: int) -> None:
        self.running = running
        self.queue = queue
        self.num_inside = 0
        self._interval_s: float | None = None  # smoothed time between departures while the model was busy
        self._left_at: float | None = None

    def enter(self, now: float) -> float | None:
        """Take a place: None; or, when all are taken, the seconds until about half of the queue has moved on."""
        if self.num_inside < self.running + self.queue:
            if not self.num_inside:
                self._left_at = now  # idle time says nothing about the pace
            self.num_inside += 1
            return None
        interval_s = 1.0 if self._interval_s is None else self._interval_s
        return min(_LONGEST_S, max(1.0, interval_s * self.queue / 2))

    def leave(self, now: float) -> None:
        """Give a place back."""
        if self.num_inside < 1:
            raise ValueError("more places given back than were taken")
        self.num_inside -= 1
        if self._left_at is not None:
            interval_s = now - self._left_at
            old = interval_s if self._interval_s is None else self._interval_s
            self._interval_s = old + _SMOOTHING * (interval_s - old)
        self._left_at = now
