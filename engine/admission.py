"""How many requests one model takes in at a time, and when one that found no place should come back.

Pure. A place is taken when a request is accepted (before any byte of an answer) and given back when its job has ended,
whatever the end was.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence

_SHORTEST_S, _LONGEST_S = 1.0, 60.0


class Admission:
    """``running`` places on the device and ``queue`` places to wait in.

    work_s: how long all that is inside will take at the measured rate; asked for only when a place is refused.
    """

    def __init__(self, *, running: int, queue: int, work_s: Callable[[], float]) -> None:
        self.running = running
        self.queue = queue
        self.num_inside = 0
        self._work_s = work_s
        self._shown: MutableSequence[float] | memoryview[float] = [0.0]

    def enter(self) -> float | None:
        """Take a place: None; or, when all are taken, the seconds until about half of the work inside is done.

        Not until the first place is free: whoever comes back should find one although others come back as well.
        """
        if self.num_inside < self.running + self.queue:
            self.num_inside += 1
            self._shown[0] = self.num_inside
            return None
        return self.retry_after_s()

    def leave(self) -> None:
        """Give a place back."""
        if self.num_inside < 1:
            raise ValueError("more places given back than were taken")
        self.num_inside -= 1
        self._shown[0] = self.num_inside

    def retry_after_s(self) -> float:
        """When to come back if all places were taken now."""
        if self.num_inside < self.running:
            return _SHORTEST_S
        return min(_LONGEST_S, max(_SHORTEST_S, self._work_s() / 2))

    def show(self, place: MutableSequence[float] | memoryview[float]) -> None:
        """Keep the number of those inside in the first element of ``place``, too, from now on."""
        place[0] = self.num_inside
        self._shown = place
