"""What a batching lane has done so far: requests, rows, runs by their size, and where the time went. Pure.

Numbers that only grow, written by the runner thread, read from any.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Runs:
    """Runs of one size."""

    count: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Tally:
    """Instants are not kept; means are the reader's."""

    num_ok: int = 0  # requests answered
    num_failed: int = 0  # requests that ended with an error
    num_overdue: int = 0  # of those, the ones that waited for too long
    num_rows: int = 0  # that were run
    num_runs: int = 0
    num_ahead: int = 0  # of them, those whose batch was made ready during the run before
    ok_s: float = 0.0  # of requests answered, from their arrival
    failed_s: float = 0.0
    queue_s: float = 0.0  # of items, from their request's arrival to their run
    run_s: float = 0.0  # inside the runtime
    held_s: float = 0.0  # that the device was free, and what waited was kept for company
    by_rows: dict[int, Runs] = field(default_factory=dict)  # up to 16 each size, then up to the next power of two

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
