"""How much memory a process has, and how that changes.

Owns reading it and fitting a line to it; knows nothing of what the process does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from pathlib import Path
from typing import NamedTuple

SETTLE_TIMEOUT_S = 15.0


def resident_kib(pid: int) -> int:
    """The memory that the process has resident now, in KiB."""
    return _status_kib(pid, "VmRSS:")


def anonymous_kib(pid: int) -> int:
    """What of ``resident_kib`` is no file's, in KiB: the kernel can only take the pages of mapped files back."""
    return _status_kib(pid, "RssAnon:")


def settled_kib(pid: int, quiet_s: float) -> int:
    """``resident_kib``, once it has not moved by half a percent for ``quiet_s``, or after 15 seconds."""
    deadline, since, kib = time.monotonic() + SETTLE_TIMEOUT_S, time.monotonic(), resident_kib(pid)
    while time.monotonic() < min(deadline, since + quiet_s):
        time.sleep(0.05)
        if abs((now := resident_kib(pid)) - kib) > kib / 200:
            since, kib = time.monotonic(), now
    return resident_kib(pid)


@contextmanager
def sampled(pid: int, every_s: float = 1.0) -> Iterator[list[tuple[float, float]]]:
    """A list that grows meanwhile: [(minutes since now, KiB resident)]; the first few come ten times as fast."""
    taken: list[tuple[float, float]] = []
    over = threading.Event()
    begun_at = time.monotonic()

    def sample() -> None:
        while not over.wait(every_s if len(taken) > 5 else every_s / 10):
            taken.append(((time.monotonic() - begun_at) / 60, float(resident_kib(pid))))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()


def memory_mib(pid: int) -> float:
    """The most memory that the process has had resident, in MiB."""
    return _status_kib(pid, "VmHWM:") / 1024


class Line(NamedTuple):
    """A line through samples: its slope, and the standard error of that."""

    slope: float
    error: float


def fit(samples: Sequence[tuple[float, float]]) -> Line:
    """The line through three or more (x, y) with the least squares of residuals. Raises ValueError where no line can be
    told from another. The error takes residuals as independent, which memory's are not: the true one is larger."""
    num = len(samples)
    mean_x, mean_y = sum(x for x, _ in samples) / max(num, 1), sum(y for _, y in samples) / max(num, 1)
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    if num < 3 or not spread:
        raise ValueError(f"{num} samples over no time or too few of them: no line can be fitted")
    slope = sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread
    residuals = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in samples)
    return Line(slope, sqrt(residuals / (num - 2) / spread))


def _status_kib(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise SystemExit(f"the kernel does not say how much memory process {pid} has")
