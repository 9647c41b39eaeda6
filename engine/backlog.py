"""How fast an encoder works, how many tokens may wait for it, and when a request that came too late should come back.

Pure. Requests are counted by engine/admission.py; but one may bring three orders of magnitude more work than another,
so here the work is counted too. The runner thread observes the pace and the event loop reads it: one float, no lock.
"""

from __future__ import annotations

_SMOOTHING = 0.2  # weight of the newest run
_FIRST_GUESS_S = 2e-4  # per token, until a run has been observed
_SHORTEST_S, _LONGEST_S = 1.0, 60.0


class Pace:
    """Seconds per cost token (engine/batcher.py), smoothed over runs."""

    def __init__(self) -> None:
        self.seconds_per_token = _FIRST_GUESS_S
        self._observed = False

    def observe(self, tokens: int, elapsed_s: float) -> None:
        """A run that cost ``tokens`` took ``elapsed_s``."""
        newest = elapsed_s / tokens
        weight = _SMOOTHING if self._observed else 1.0
        self.seconds_per_token += weight * (newest - self.seconds_per_token)
        self._observed = True

    def tokens_in(self, seconds: float) -> float:
        """What fits in so many seconds."""
        return seconds / self.seconds_per_token


class Backlog:
    """The tokens of the requests that have come and not been answered.

    A request is let in while there are fewer than ``max_tokens``, whatever its own size, so that the largest has its
    chance as well as the smallest; the bound is therefore one request more.
    """

    def __init__(self, pace: Pace, *, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self._pace = pace

    def full_for_s(self) -> float | None:
        """None: another request may come; otherwise the seconds until about half of the work is done."""
        if self.num_tokens < self.max_tokens:
            return None
        return min(_LONGEST_S, max(_SHORTEST_S, self.work_s() / 2))

    def work_s(self) -> float:
        """How long all that is inside will take."""
        return self._pace.seconds_per_token * self.num_tokens

    def enter(self, tokens: int) -> None:
        """A request brings so many tokens."""
        self.num_tokens += tokens

    def leave(self, tokens: int) -> None:
        """It has ended, however it did."""
        if self.num_tokens < tokens:
            raise ValueError("more was taken out of the backlog than is inside")
        self.num_tokens -= tokens
