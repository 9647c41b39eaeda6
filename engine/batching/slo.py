"""Whether waiting for company makes requests miss what the operator promised of the model. Pure.

A request counts as broken by waiting when it took longer than it may, and would not have without the wait. More than
one in a hundred of them and the window is shut, until nearly none of the latest requests was.
"""

from __future__ import annotations

_SMOOTHING = 1 / 200  # weight of the newest request
_SHUT, _OPEN = 0.01, 0.002  # parts of the requests; between them all stays as it is


class Slo:
    """One model's promise: ``p99_s``, from the arrival of a request to its result."""

    def __init__(self, p99_s: float) -> None:
        self.p99_s = p99_s
        self.shut = False
        self.num_broken = 0
        self._part = 0.0

    def observe(self, latency_s: float, held_s: float) -> bool:
        """A request was answered; of its latency it was held so long for company. Whether ``shut`` has changed."""
        broken = latency_s > self.p99_s >= latency_s - held_s
        self.num_broken += broken
        self._part += _SMOOTHING * (broken - self._part)
        shut = self._part > (_OPEN if self.shut else _SHUT)
        changed, self.shut = shut != self.shut, shut
        return changed
