"""When what waits is run: at once, or after waiting a little for company. Pure.

A device that is free runs what waits. Waiting for one more request holds everybody in the batch; the one that then
comes along spares the device a run of its own, and whoever comes during the next run gains as much. ``Adaptive`` waits
where that gains more than it costs, by the mean rate of requests or by what clients do that were just answered, never
longer than could be gained, and never so long that somebody's deadline passes. ``ByRate`` is the plain rule that it has
to beat: a batch is as many requests as come within 15, 30 or 50 ms, the more the faster they come.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Protocol

from engine.batching.pace import Pace
from engine.batching.returns import Returns

PolicyName = Literal["adaptive", "rate"]
#: Why a batch ran: the device was free and nothing to be gained by waiting; no more fits, or pays; the window ended; a
#: deadline was near; waiting would break the SLO; a run had failed and its halves are run again.
Trigger = Literal["free", "full", "window", "deadline", "slo", "halves"]

RATE_MOST = 128
MIN_GAIN = 0.4  # of what a run costs beyond its rows: what waiting for those who come back must gain at least
_DELTAS = ((200.0, 0.015), (800.0, 0.030), (math.inf, 0.050))  # up to so many requests per second: seconds


class Forming(NamedTuple):
    """The batch that would run now."""

    rows: int
    size: int  # of the largest of them
    full: bool  # one more like these would find no room, or would not pay
    limit: int  # rows per run
    since: float  # when it could have begun: the first of all that wait had come, and the last run had ended
    start_by: float  # later than this it would be too late for one of them
    may_wait: bool = True  # False: waiting has broken the SLO


class Closing(NamedTuple):
    """When the window closes, and why then."""

    at: float
    trigger: Trigger
    threshold: float  # the rows (full) or the microseconds (window, deadline) that closed it


class Traffic(NamedTuple):
    """What is known of the requests to come."""

    rate: float  # requests per second
    returns: Returns
    now: float


class Policy(Protocol):
    """When a batch runs if nothing more happens."""

    def close(self, forming: Forming, traffic: Traffic) -> Closing:
        """The instant may lie in the past."""
        ...


class Adaptive:
    """Waits where it pays."""

    def __init__(self, pace: Pace, window_s: float | None) -> None:
        """window_s: the longest wait; None: as long as could be gained."""
        self._pace = pace
        self._window_s = math.inf if window_s is None else window_s

    def close(self, forming: Forming, traffic: Traffic) -> Closing:
        """See the theory above."""
        if forming.full:
            return Closing(forming.since, "full", forming.limit)
        if not forming.may_wait:
            return Closing(forming.since, "slo", 0)
        saved_s = self._pace.run_cost_s(forming.size)
        window_s = min(self._window_s, saved_s)
        until = forming.since + window_s
        if window_s <= 0 or until <= traffic.now:
            return Closing(min(until, traffic.now), "window" if window_s > 0 else "free", window_s * 1e6)
        if self._many_come(forming, traffic.rate, saved_s):
            return _no_later(Closing(until, "window", window_s * 1e6), forming)
        at = _back_by(traffic, saved_s)
        if at is None:
            return Closing(forming.since, "free", 0)
        return _no_later(Closing(min(at, until), "window", window_s * 1e6), forming)

    def _many_come(self, forming: Forming, rate: float, saved_s: float) -> bool:
        """Whether to wait for the next, after the mean gap: for its gain, and that of those who come during the run."""
        if rate * saved_s <= 1:
            return False
        gap_s = 1 / rate
        run_s = self._pace.run_s(forming.rows, forming.size)
        row_s = self._pace.run_s(forming.rows + 1, forming.size) - run_s
        return (saved_s - gap_s) * (1 + rate * run_s) > forming.rows * (gap_s + row_s)


class ByRate:
    """batch = min(128, max(1, rate * delta)), or what has come when delta is over."""

    def close(self, forming: Forming, traffic: Traffic) -> Closing:
        """The window is delta."""
        rate = traffic.rate
        delta_s = next(delta_s for up_to, delta_s in _DELTAS if rate <= up_to)
        wanted = min(RATE_MOST, max(1.0, rate * delta_s))
        if forming.full or forming.rows >= wanted:
            return Closing(forming.since, "full", min(wanted, forming.limit))
        if not forming.may_wait:
            return Closing(forming.since, "slo", 0)
        return _no_later(Closing(forming.since + delta_s, "window", delta_s * 1e6), forming)


def _back_by(traffic: Traffic, saved_s: float) -> float | None:
    """Until when to wait for clients that were just answered: one more run is spared if any of them comes until then,
    and the device idles meanwhile. None: that gains too little."""
    best_at, best_s = None, MIN_GAIN * saved_s
    latest = traffic.now + saved_s - best_s
    for at, expected in traffic.returns.expected(latest, traffic.rate):
        gain_s = saved_s * min(1.0, expected) - (at - traffic.now)
        if at > traffic.now and gain_s > best_s:
            best_at, best_s = at, gain_s
    return best_at


def _no_later(closing: Closing, forming: Forming) -> Closing:
    if closing.at <= forming.start_by:
        return closing
    return Closing(forming.start_by, "deadline", max(0.0, forming.start_by - forming.since) * 1e6)
