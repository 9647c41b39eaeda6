"""What a run of a model takes, learnt from the runs that have been.

Pure; the runner thread observes, any thread reads. Seconds = a * rows * size + b, for each bucket of sizes, up to the
next power of two: what batching gains depends on them, since b, what a run costs beyond its rows, is all that company
saves, and a model whose cores are busy with a single long row has none. Each bucket is a least-squares line through its
runs, the newest counting most, held to the prior ratio of b to a as long as its runs tell nothing else (all of as many
rows, say). A bucket that has not run takes its scale from the others.
"""

from __future__ import annotations

_DECAY = 0.97  # of a run's weight with each later one of its bucket: about the last 33 count
_PRIOR_WEIGHT = 0.1  # of the two runs that stand for the prior ratio
_PRIOR_ROWS = (1, 16)
_OUTLIER = 3.0  # times what was expected: the box was busy with something else, so it counts no more than so much
_TRUSTED_RUNS = 8
_FIRST_GUESS_S = 1e-3  # what a run costs beyond its rows, until one has been observed


class Pace:
    """The lines of one model."""

    def __init__(self, run_cost: float = 1.0) -> None:
        """run_cost: b / a before anything is known, in units of size."""
        self.run_cost = run_cost
        self._scale = _Scale(run_cost)
        self._lines: dict[int, _Line] = {}

    def observe(self, rows: int, size: int, elapsed_s: float) -> None:
        """A run of ``rows`` rows, each padded to ``size``, took ``elapsed_s``."""
        line = self._lines.get(_bucket(size))
        if line is None:
            line = self._lines[_bucket(size)] = _Line(size, self.run_cost)
        if line.num_runs >= _TRUSTED_RUNS:
            elapsed_s = min(elapsed_s, _OUTLIER * line.run_s(rows * size))
        self._scale.observe(rows * size, elapsed_s)
        line.observe(rows * size, elapsed_s)

    def run_s(self, rows: int, size: int) -> float:
        """What such a run should take, in seconds."""
        line = self._lines.get(_bucket(size))
        if line is None:
            return self._scale.seconds_per_unit * (self.run_cost + rows * size)
        return line.run_s(rows * size)

    def run_cost_s(self, size: int) -> float:
        """What a run of rows of this size costs beyond them: what one row saves that runs along with others. 0.0 until
        any run has been observed: nobody waits for a gain that is only guessed."""
        line = self._lines.get(_bucket(size))
        if line is not None:
            return line.b
        return self._scale.seconds_per_unit * self.run_cost if self._lines else 0.0

    @property
    def seconds_per_unit(self) -> float:
        """Of late, with all that runs cost beyond their rows counted to the units."""
        return self._scale.total_per_unit


def _bucket(size: int) -> int:
    """1, 2, 3-4, 5-8, 9-16 …"""
    return (size - 1).bit_length()


class _Scale:
    """How fast the model is whatever the size."""

    def __init__(self, run_cost: float) -> None:
        self.seconds_per_unit = self.total_per_unit = _FIRST_GUESS_S / run_cost
        self._run_cost = run_cost
        self._units = self._cost = self._seconds = 0.0

    def observe(self, units: int, elapsed_s: float) -> None:
        self._units = _DECAY * self._units + units
        self._cost = _DECAY * self._cost + units + self._run_cost
        self._seconds = _DECAY * self._seconds + elapsed_s
        self.seconds_per_unit = self._seconds / self._cost
        self.total_per_unit = self._seconds / self._units


class _Line:
    """seconds = a * units + b of one bucket."""

    def __init__(self, size: int, run_cost: float) -> None:
        self.num_runs = 0
        self.a = self.b = 0.0
        self._run_cost = run_cost
        self._prior_units = [rows * size for rows in _PRIOR_ROWS]
        self._w = self._x = self._t = self._xx = self._xt = 0.0

    def run_s(self, units: int) -> float:
        return self.a * units + self.b

    def observe(self, units: int, elapsed_s: float) -> None:
        self.num_runs += 1
        self._w = _DECAY * self._w + 1
        self._x = _DECAY * self._x + units
        self._t = _DECAY * self._t + elapsed_s
        self._xx = _DECAY * self._xx + units * units
        self._xt = _DECAY * self._xt + units * elapsed_s
        self._fit()

    def _fit(self) -> None:
        per_unit = self._t / (self._x + self._w * self._run_cost)  # the prior's own fit to these runs
        w, x, t, xx, xt = self._w, self._x, self._t, self._xx, self._xt
        for units in self._prior_units:
            seconds = per_unit * (units + self._run_cost)
            w += _PRIOR_WEIGHT
            x += _PRIOR_WEIGHT * units
            t += _PRIOR_WEIGHT * seconds
            xx += _PRIOR_WEIGHT * units * units
            xt += _PRIOR_WEIGHT * units * seconds
        a = (w * xt - x * t) / (w * xx - x * x)
        b = (t - a * x) / w
        if b < 0:
            a, b = t / x, 0.0
        elif a < 0:
            a, b = 0.0, t / w
        self.a, self.b = a, b
