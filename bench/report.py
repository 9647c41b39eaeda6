"""What every benchmark prints and writes: the machine, the versions, the method, a table and named ratios.

Owns the shape of a result and the command line (``--quick``, ``--json``, ...). Knows nothing of what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

Row = dict[str, Any]
Size = TypeVar("Size", int, float)


@dataclass
class Report:
    """One run's result. rows: one mapping per line of a table; rows in a run that have the same keys are one table.

    ratios: named numbers that acceptance is judged by; None where a peer was not there. notes: peers left out, and why.
    """

    name: str
    method: str
    versions: dict[str, str]
    rows: list[Row] = field(default_factory=list)
    ratios: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The JSON document: {name, machine, versions, method, rows, ratios, notes}."""
        return {
            "name": self.name,
            "machine": machine(),
            "versions": self.versions,
            "method": self.method,
            "rows": self.rows,
            "ratios": {name: ratio for name, ratio in self.ratios.items() if ratio is not None},
            "notes": self.notes,
        }

    def finish(self, json_path: Path | None) -> None:
        """Prints the tables and, where a path is given, writes the document."""
        print(f"\n{self.name}: {self.method}")
        print(", ".join(f"{key}: {value}" for key, value in machine().items()))
        print(", ".join(f"{name} {version}" for name, version in self.versions.items()), end="\n\n")
        for _, rows in groupby(self.rows, tuple):
            print(table(list(rows)), end="\n\n")
        for name, ratio in self.ratios.items():
            print(f"{name:32} {'not measured' if ratio is None else spell(ratio)}")
        for note in self.notes:
            print(f"note: {note}")
        if json_path is not None:
            json_path.write_text(json.dumps(self.document(), indent=2) + "\n")


class Options(argparse.Namespace):
    """The command line: what all benchmarks share, and what one adds as attributes of its own."""

    quick: bool
    smoke: bool
    rounds: int | None
    json: Path | None

    def pick(self, full: Size, quick: Size, smoke: Size) -> Size:
        """The size of something for the run that was asked for."""
        return smoke if self.smoke else quick if self.quick else full


def arguments(description: str | None, add: Callable[[argparse.ArgumentParser], object] | None = None) -> Options:
    """Parses the command line; ``add`` adds to it. From here on SIGTERM ends what was started, too."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: under two minutes")
    parser.add_argument("--smoke", action="store_true", help="one tiny round that shows that it runs: no figure counts")
    parser.add_argument("--rounds", type=int, metavar="N", help="interleaved rounds, instead of the usual number")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there, too")
    if add is not None:
        add(parser)
    return parser.parse_args(namespace=Options())


def machine() -> dict[str, str]:
    """Processor, number of cores that this process may use, kernel and Python."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def versions(*distributions: str) -> dict[str, str]:
    """The installed versions of the named distributions; those that are not installed are left out."""
    found = {}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def ratio(of: float | None, to: float | None) -> float | None:
    """``of / to``, or None where either was not measured or ``to`` is zero."""
    return None if of is None or not to else of / to


def spell(value: Any) -> str:
    """A cell of the table: numbers with three or four significant digits."""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "-" if value is None else str(value)


def table(rows: Sequence[Row]) -> str:
    """The rows under the first row's keys, in aligned columns, numbers to the right."""
    if not rows:
        return "(no rows)"
    heads = list(rows[0])
    cells = [heads, *([spell(row.get(head)) for head in heads] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    left = [isinstance(rows[0][head], str) for head in heads]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if is_left else cell.rjust(w) for cell, w, is_left in zip(line, widths, left, strict=True)
        )
        for line in cells
    )
