"""How commands speak: results on standard output, everything else on standard error, failures as one sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from appliance import exit_codes

DEFAULT_CONFIG = Path("/etc/headrace/headrace.yaml")

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", envvar="HEADRACE_CONFIG", help="The configuration file.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


class CommandError(Exception):
    """The command failed: one sentence of what happened, to what, and what to do; and the exit code."""

    def __init__(self, message: str, exit_code: int = exit_codes.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def print_json(value: Any) -> None:
    """The value on standard output, for scripts."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def note(message: str) -> None:
    """A remark for the person at the terminal, out of the way of scripts."""
    print(message, file=sys.stderr)


def os_error(error: OSError, what: str) -> CommandError:
    """The CommandError for ``what`` (like ``write keys.yaml``), which the operating system refused."""
    file = f" ({error.filename})" if error.filename and str(error.filename) not in what else ""
    kept = "" if what.startswith("read ") else "; nothing was changed"
    return CommandError(f"cannot {what}: {error.strerror or error}{file}{kept}")


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """A callback ``progress(stage, done, total)`` that draws one bar for each stage on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%")
    bars = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def progress(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            bars.start()  # not before there is a bar: a refusal stays one line
            tasks[stage] = bars.add_task(stage)
        bars.update(tasks[stage], completed=done, total=total or None)

    try:
        yield progress
    finally:
        if tasks:
            bars.stop()
