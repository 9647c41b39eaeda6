"""How often requests come to a model, smoothed. Pure: instants are handed in."""

from __future__ import annotations

import math

_SMOOTHING = 0.1  # weight of the newest gap: about the last ten count
_LONGEST = 8.0  # times the smoothed gap: one idle night does not hide the traffic of the morning for long
_SHORTEST_S = 1e-6


class Arrivals:
    """The rate of requests, from the gaps between them."""

    def __init__(self) -> None:
        self._gap_s: float | None = None
        self._last_at = -math.inf

    def come(self, now: float) -> None:
        """A request has come."""
        gap_s = max(0.0, now - self._last_at)
        self._last_at = max(now, self._last_at)
        if self._gap_s is None:
            self._gap_s = gap_s if gap_s < math.inf else None
        else:
            self._gap_s += _SMOOTHING * (min(gap_s, _LONGEST * max(self._gap_s, _SHORTEST_S)) - self._gap_s)

    def rate(self, now: float) -> float:
        """Requests per second; what has not come since is counted too, so it fades when nobody comes any more."""
        if self._gap_s is None:
            return 0.0
        return 1.0 / max(self._gap_s, now - self._last_at, _SHORTEST_S)
