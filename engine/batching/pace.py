"""What a run of a model takes, from the runs that have been. Pure; the runner thread observes, any thread reads."""

from __future__ import annotations

#: What a run costs beyond its padded size (MiniLM on two cores: 2.4 ms a run, 0.17 ms a token).
RUN_COST = 16

_SMOOTHING = 0.2  # weight of the newest run
_FIRST_GUESS_S = 2e-4  # per unit of size, until a run has been observed


class Pace:
    """Seconds per unit of size, smoothed over runs."""

    def __init__(self) -> None:
        self.seconds_per_unit = _FIRST_GUESS_S
        self._observed = False

    def observe(self, rows: int, size: int, elapsed_s: float) -> None:
        """A run of ``rows`` rows, each padded to ``size``, took ``elapsed_s``."""
        newest = elapsed_s / (RUN_COST + rows * size)
        weight = _SMOOTHING if self._observed else 1.0
        self.seconds_per_unit += weight * (newest - self.seconds_per_unit)
        self._observed = True

    def run_s(self, rows: int, size: int) -> float:
        """What such a run should take, in seconds."""
        return self.seconds_per_unit * (RUN_COST + rows * size)
