"""What the policies cost: the chain, counting tokens, the shared table, and whether four workers admit exactly a quota.

    python bench/policy.py [--quick] [--json FILE] [--only PART]

A chat request of 2 KiB through one worker, with every policy on, with each alone and with each left out: processor time
of the worker's process. Then a small request beside one whose 100 KB of text are counted, four processes that decide
about one key of the shared table, and four workers under load of which some are killed, and reloaded meanwhile.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import peers, policies
from bench.admitted import NUM_WORKERS, PER_S, measure_admitted
from bench.chat_cost import CONNECTIONS, measure_cost
from bench.chats import TURNS
from bench.contended import NUM_PROCESSES, measure_table
from bench.counting import LONG_BYTES, PACE_S, measure_counting
from bench.report import Report, Row, arguments, versions

METHOD = (
    f"chat requests of 2 KiB, {TURNS} running of a conversation, {CONNECTIONS} at a time to one worker on one core: "
    "processor time of its process for one request, median over rounds of the difference of two routes in a round; "
    "alone_us: a route with that policy alone over a bare relay; in_all_us: all over all but that one. "
    f"Small requests every {PACE_S * 1e3:g} ms beside prompts of {LONG_BYTES // 1000} KB that are counted one by one, "
    "unpinned; count_100k_delay_ms: p99.9 beside them less p99.9 without, in turns. "
    f"{NUM_PROCESSES} processes that do nothing but decide, on all cores. {NUM_WORKERS} workers under {PER_S:g} "
    "requests a second until no quota has room, with workers killed by SIGKILL and reloads meanwhile: what reached the "
    "upstream against the quota; a request that was cut with its worker may have been counted"
)
PARTS = ("cost", "counting", "table", "admitted")


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--only", choices=PARTS, action="append", metavar="PART", help=f"one of {', '.join(PARTS)}")

    options = arguments(__doc__, add)
    parts = options.only or PARTS
    rows: list[Row] = []
    ratios: dict[str, float | None] = {}
    measures: dict[str, Callable[[], tuple[list[Row], dict[str, float | None]]]] = {
        "cost": lambda: measure_cost(options.rounds or options.pick(15, 5, 1), options.pick(200, 80, 8)),
        "counting": lambda: measure_counting(options.pick(20.0, 6.0, 0.5)),
        "table": lambda: measure_table(options.pick(5.0, 1.5, 0.2)),
        "admitted": lambda: measure_admitted(options.pick(600.0, 30.0, 4.0)),
    }
    for part, measure in measures.items():
        if part in parts:
            found, figures = measure()
            rows += found
            ratios |= figures
    Report(
        name="policy",
        method=METHOD,
        versions={**versions("headrace", "uvloop", "httptools", "tiktoken"), **peers.versions()},
        rows=rows,
        ratios=ratios,
        notes=policies.missing(),
    ).finish(options.json)


if __name__ == "__main__":
    main()
