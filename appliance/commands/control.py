"""``headrace reload`` and ``headrace status``: what one says to a headrace that runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from appliance import exit_codes
from appliance.commands.terminal import DEFAULT_CONFIG, CommandError, ConfigOption, JsonOption, note, print_json


def reload(
    config: ConfigOption = DEFAULT_CONFIG,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until every process has taken the new configuration, or none has.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Take the configuration anew without cutting a request. One that is wrong changes nothing."""
    if not wait:
        pid = _ask(config, "status")["pid"]
        os.kill(pid, signal.SIGHUP)
        if as_json:
            print_json({"asked": True, "pid": pid})
        else:
            print("asked for a reload; its log and `headrace status` show how it ends")
        return
    answer = _ask(config, "reload")
    if as_json:
        print_json(answer)
    else:
        for problem in answer["problems"]:
            note(str(problem))
    if not answer["ok"]:
        raise CommandError("nothing was changed; the configuration from before still serves")
    if not as_json:
        print("reloaded")


def status(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Show the processes of a running headrace, and what it serves."""
    answer = _ask(config, "status")
    if as_json:
        print_json(answer)
    else:
        _print_table(answer)


def _ask(config: Path, verb: str) -> dict[str, Any]:
    from appliance.admin_client import Unreachable, call
    from appliance.config import locate_runtime_dir

    try:
        return call(locate_runtime_dir(config, os.environ, os.getuid()), verb)
    except Unreachable as error:
        raise CommandError(str(error), exit_codes.UNAVAILABLE) from None


def _print_table(answer: dict[str, Any], indent: str = "") -> None:
    for key, value in answer.items():
        rows = [value] if isinstance(value, dict) else value if isinstance(value, list) else None
        if rows is None:
            print(f"{indent}{key}: {value}")
            continue
        print(f"{indent}{key}:")
        for row in rows:
            if isinstance(row, dict):
                print(indent + "  " + "  ".join(f"{name}={each}" for name, each in row.items()))
            else:
                print(f"{indent}  {row}")
