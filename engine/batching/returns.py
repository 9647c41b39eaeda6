"""How many clients come back soon after they were answered, and how soon. Pure: instants are handed in.

Clients that ask again as soon as they have an answer come together with those of the same batch: the mean rate of
requests does not show it. Counted are the requests that come within each of a few spans after the answers of a run, for
each of those answers, the latest runs counting most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

_DECAY = 0.95  # of a run's weight with each later one: about the last twenty count
_EDGES_S = tuple(0.00025 * 2 ** (step / 2) for step in range(15))  # 0.25 ms to 32 ms
_MARKED = 3.0  # times as many as the mean rate tells: so many do not come by chance


class Returns:
    """What comes after the answers of a run."""

    def __init__(self) -> None:
        self._answered_at: float | None = None
        self._num_answers = 0
        self._came = [0] * len(_EDGES_S)  # since then, by span
        self._num_came = 0
        self._runs = self._answers = 0.0  # these three decay
        self._counts = [0.0] * len(_EDGES_S)

    def answered(self, now: float, num_jobs: int) -> None:
        """A run has ended and answered so many jobs, at least one."""
        if self._answered_at is not None:
            self._runs = _DECAY * self._runs + 1
            self._answers = _DECAY * self._answers + self._num_answers
            self._counts = [_DECAY * count + came for count, came in zip(self._counts, self._came, strict=True)]
        self._answered_at, self._num_answers = now, num_jobs
        self._came, self._num_came = [0] * len(_EDGES_S), 0

    def come(self, now: float) -> None:
        """A request has come."""
        if self._answered_at is not None:
            self._num_came += 1
            span = bisect_left(_EDGES_S, now - self._answered_at)
            if span < len(_EDGES_S):
                self._came[span] += 1

    def expected(self, until: float, rate: float) -> Iterator[tuple[float, float]]:
        """Instants before ``until``, ascending, and how many more requests than have come are expected until each.

        Left out are those by which not many more come than after any other instant. rate: requests per second.
        """
        if self._answered_at is None or not self._runs:
            return
        count, within_s = 0.0, until - self._answered_at
        for edge_s, in_span in zip(_EDGES_S, self._counts, strict=True):
            if edge_s >= within_s:
                return
            count += in_span
            if count >= _MARKED * rate * edge_s * self._runs:
                yield self._answered_at + edge_s, count / self._answers * self._num_answers - self._num_came
