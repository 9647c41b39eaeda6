"""Traffic that the batching does not fit, recognised from the runs, so that an operator is told what to change. Pure.

``small_windows``: the device is held for company, and at the end of the window one or two rows run after all.
``spikes``: the device idles for longer than a full run takes, and then more comes at once than two runs can hold.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["small_windows", "spikes"]
KINDS: tuple[Kind, ...] = ("small_windows", "spikes")
ADVICE: dict[Kind, str] = {
    "small_windows": "windows close with one or two rows, so waiting brings no company: set batching.window to auto"
    " or to 0s",
    "spikes": "gaps alternate with spikes of more than two full batches, which no window evens out: let clients spread"
    " their requests, or raise batching.max_batch",
}

_SMOOTHING = 1 / 32  # weight of the newest window or busy spell
_BEGINS, _ENDS = 0.5, 0.25  # parts of them
_SMALL_ROWS = 2


class Run(NamedTuple):
    """What is to be known of one run as it begins."""

    rows: int
    pending_rows: int  # that waited, those of the run among them
    max_batch: int
    held_s: float  # that the device was kept free for company
    idle_s: float  # that nothing waited before the first of them came
    full_run_s: float  # what a full run should take


class Misfit:
    """Which kinds hold at present."""

    def __init__(self) -> None:
        self.present: dict[Kind, bool] = dict.fromkeys(KINDS, False)
        self._parts: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self._spell = False  # the busy spell that goes on began after a gap
        self._spike = False  # and held more than two runs' worth

    def observe(self, run: Run) -> list[Kind]:
        """The kinds that begin with this run."""
        began: list[Kind] = []
        if run.held_s > 0 and self._count("small_windows", run.rows <= _SMALL_ROWS):
            began.append("small_windows")
        if run.idle_s > 0:
            if self._count("spikes", self._spell and self._spike):
                began.append("spikes")
            self._spell, self._spike = run.idle_s > run.full_run_s, False
        self._spike |= run.pending_rows > 2 * run.max_batch
        return began

    def _count(self, kind: Kind, fits: bool) -> bool:
        self._parts[kind] += _SMOOTHING * (fits - self._parts[kind])
        present = self._parts[kind] > (_ENDS if self.present[kind] else _BEGINS)
        began = present and not self.present[kind]
        self.present[kind] = present
        return began
