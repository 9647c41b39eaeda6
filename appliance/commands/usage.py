"""``headrace keys usage``: who has used how many tokens of which model, out of the record of usage."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from appliance.commands.terminal import DEFAULT_CONFIG, CommandError, ConfigOption, JsonOption, print_json

_ANY_WIDTH = 1 << 16


def usage(
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="key, team, tenant, model, upstream, route, status, day or month; may be given again. Otherwise key.",
        ),
    ] = None,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="A date, a date and time, or how long ago: 2026-01-31, 12h, 30d.")
    ] = "30d",
    until: Annotated[str | None, typer.Option(metavar="TIME", help="The same; otherwise now.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the result as CSV.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how many tokens were used, by whom and of which model. Also while nothing serves."""
    from proxy.usage_report import BY, report
    from proxy.usage_store import StoreError

    wanted = list(dict.fromkeys(by or ["key"]))
    for name in wanted:
        if name not in BY:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(BY)}", param_hint="--by")
    if as_csv and as_json:
        raise typer.BadParameter("choose one of --csv and --json", param_hint="--csv")
    now = time.time()
    begin, end = _instant(since, now, "--since"), now + 1.0 if until is None else _instant(until, now, "--until")
    path = _path(config)
    if not path.exists():
        raise CommandError(f"there is no record of usage at {path} yet: nothing was used since `usage` is served")
    try:
        rows = report(path, wanted, begin, end)
    except StoreError as error:
        raise CommandError(f"{error}; run this as root or as the user that serves") from None
    if as_json:
        print_json(rows)
    elif as_csv:
        _print_csv(wanted, rows)
    else:
        _print_table(wanted, rows)


def _path(config: Path) -> Path:
    """Where the configuration has its record of usage, even while it is broken otherwise."""
    from appliance.config.files import read
    from appliance.config.problems import ConfigurationError

    try:
        table = read(config)[0].data.get("usage")
    except ConfigurationError as error:
        raise CommandError("; ".join(map(str, error.problems))) from None
    path = table.get("path") if isinstance(table, dict) else None
    if not isinstance(path, str):
        raise CommandError(f"{config} keeps no record of usage; say `usage: {{path: FILE}}` there")
    return Path(path)


def _instant(text: str, now: float, option: str) -> float:
    """Unix time of a date, in the box's time zone, or of a time ago."""
    from proxy.units import parse_duration

    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        message = f"{text!r} is no time; write a date like 2026-01-31, or how long ago, like 30d"
        raise typer.BadParameter(message, param_hint=option) from None


def _print_csv(by: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    from proxy.usage_report import SUMS

    writer = csv.DictWriter(sys.stdout, (*by, *SUMS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _print_table(by: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from proxy.usage_report import SUMS

    table = Table(box=None, pad_edge=False)
    for name in by:
        table.add_column(name, overflow="fold")
    for name in SUMS:
        table.add_column(name.removesuffix("_tokens"), justify="right", no_wrap=True)
    for row in rows:
        names = [Text(_plain(str(row[name]))) for name in by]
        table.add_row(*names, *(f"{row[name]:,}" for name in SUMS))
    width = None if sys.stdout.isatty() else _ANY_WIDTH  # who reads a file or a pipe breaks lines, if at all
    Console(width=width, soft_wrap=width is not None).print(table if rows else "nothing was used in this time")


def _plain(text: str) -> str:
    """A name as a terminal may have it: what clients wrote may be anything."""
    shown = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
    return shown or "-"
