"""What a batching lane has done so far: requests, rows, runs by their size, and where the time went. Pure.

Numbers that only grow, written by the runner thread, read from any.
"""

from __future__ import annotations


class Runs:
    """Runs of one size."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0


class Tally:
    """Instants are not kept; means are the reader's."""

    def __init__(self) -> None:
        self.num_ok = 0  # requests answered
        self.num_failed = 0  # requests that ended with an error
        self.num_overdue = 0  # of those, the ones that waited for too long
        self.num_rows = 0  # that were run
        self.num_runs = 0
        self.num_ahead = 0  # of them, those whose batch was made ready during the run before
        self.ok_s = 0.0  # of requests answered, from their arrival
        self.failed_s = 0.0
        self.queue_s = 0.0  # of items, from their request's arrival to their run
        self.run_s = 0.0  # inside the runtime
        self.held_s = 0.0  # that the device was free, and what waited was kept for company
        self.by_rows: dict[int, Runs] = {}  # up to 16 each size, then up to the next power of two

    def ran(self, rows: int, seconds: float) -> None:
        """One run."""
        self.num_runs += 1
        self.num_rows += rows
        self.run_s += seconds
        runs = self.by_rows.setdefault(_size(rows), Runs())
        runs.count += 1
        runs.seconds += seconds

    def ended(self, seconds: float, *, ok: bool) -> None:
        """A request has its answer."""
        if ok:
            self.num_ok += 1
            self.ok_s += seconds
        else:
            self.num_failed += 1
            self.failed_s += seconds


def _size(rows: int) -> int:
    return rows if rows <= 16 else 1 << (rows - 1).bit_length()
