"""How many tokens may wait for a model, and when a request that came too late should come back.

Pure. Requests are counted by engine/admission.py; but one may bring three orders of magnitude more work than another,
so here the work is counted too.
"""

from __future__ import annotations

from engine.batching.pace import Pace

_SHORTEST_S, _LONGEST_S = 1.0, 60.0


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
        return self._pace.seconds_per_unit * self.num_tokens

    def enter(self, tokens: int) -> None:
        """A request brings so many tokens."""
        self.num_tokens += tokens

    def leave(self, tokens: int) -> None:
        """It has ended, however it did."""
        if self.num_tokens < tokens:
            raise ValueError("more was taken out of the backlog than is inside")
        self.num_tokens -= tokens
