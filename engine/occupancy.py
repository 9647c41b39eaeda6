"""What a device's thread spends its time on: inside runs, or on the host while work waits for the next run.

Pure: instants are handed in. Time without work is neither. The share of the second is what a faster host could win.
"""

from __future__ import annotations


class Occupancy:
    """Seconds that only grow; read from any thread."""

    def __init__(self, now: float) -> None:
        self.run_s = 0.0
        self.host_s = 0.0
        self._since = now

    def worked(self, now: float, run_s: float) -> None:
        """A step has ended; since the last call ``run_s`` passed inside a run, and the rest on the host."""
        self.run_s += run_s
        self.host_s += max(0.0, now - self._since - run_s)
        self._since = now

    def ran(self, now: float) -> None:
        """Something was inside a run all the time since the last call."""
        self.run_s += now - self._since
        self._since = now

    def slept(self, now: float) -> None:
        """There was nothing to do until now."""
        self._since = now
