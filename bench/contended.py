"""The shared table where several processes decide at once: decisions per second and core.

    python bench/contended.py FD COLUMN WHAT SECONDS      one process of them: decides when told, and says how often

Owns the processes and what they ask; all of them share the cores that there are. ``WHAT`` is a row of ``MEASURED``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.peers import HEADRACE
from bench.processes import HERE
from bench.report import Row
from bench.serving import num_cores
from proxy.gcra import Terms
from proxy.shared.limit import decide_together
from proxy.shared.owner import SharedTableOwner
from proxy.shared.table import SharedTable

NUM_PROCESSES = 4
_MUCH = Terms(1 << 29, 1.0, 1 << 29)
#: name: (algorithm, keys, limits asked together)
MEASURED = {
    "gcra, one key": ("gcra", 1, 1),
    "gcra, 1000 keys": ("gcra", 1000, 1),
    "sliding, one key": ("sliding", 1, 1),
    "sliding, 1000 keys": ("sliding", 1000, 1),
    "three gcra at once, one key": ("gcra", 1, 3),
}


def decider(table: SharedTable, what: str) -> Callable[[str, float], object]:
    """What decides about a key at a time, as a row of ``MEASURED`` says."""
    algorithm, _, num_together = MEASURED[what]
    make = table.sliding if algorithm == "sliding" else table.limit
    limits = [make(f"bench {i}", _MUCH) for i in range(num_together)]
    if num_together == 1:
        return limits[0].decide
    return lambda key, now: decide_together([(limit, key) for limit in limits], now)


def measure_table(seconds: float) -> tuple[list[Row], dict[str, float | None]]:
    """Rows by what is decided, and the least of those that ask one limit: every request asks one of them at least."""
    rows: list[Row] = []
    for what in MEASURED:
        alone, together = _per_core_s(what, 1, seconds), _per_core_s(what, NUM_PROCESSES, seconds)
        rows.append({"table": what, "alone_per_s": alone, "contended_per_core_s": together})
    single = [row["contended_per_core_s"] for row in rows if MEASURED[row["table"]][2] == 1]
    return rows, {"table_decisions_per_s": min(single)}


def _per_core_s(what: str, num_processes: int, seconds: float) -> float:
    owner = SharedTableOwner()
    environment = HEADRACE[: HEADRACE.index(sys.executable)]  # the compiled copy, where that is measured
    processes = [
        subprocess.Popen(
            [*environment, sys.executable, str(HERE / "contended.py"), *map(str, (owner.fd, column, what, seconds))],
            pass_fds=[owner.fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for column in [owner.enter() for _ in range(num_processes)]
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # it is there
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        told = [process.communicate(timeout=seconds + 30)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        owner.close()
    return sum(int(each) for each in told) / seconds / min(num_processes, num_cores())


def decide(fd: int, column: int, what: str, seconds: float) -> int:
    """Decides for so many seconds; how often."""
    table = SharedTable.attached(fd, column)
    asks = decider(table, what)
    keys = [f"key {i}" for i in range(MEASURED[what][1])]
    print("here", flush=True)
    sys.stdin.readline()
    num_decided, at = 0, 97 * column % len(keys)
    now = time.monotonic()
    end = now + seconds
    while now < end:
        for _ in range(32):
            asks(keys[at], now)
            at = (at + 1) % len(keys)
        num_decided += 32
        now = time.monotonic()
    return num_decided


if __name__ == "__main__":
    print(decide(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])), flush=True)
