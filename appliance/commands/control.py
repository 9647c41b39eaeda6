"""``headrace reload`` and ``headrace status``: what one says to a headrace that runs."""

from __future__ import annotations

import os
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
    answer = _ask(config, "reload", wait=wait)
    if as_json:
        print_json(answer)
    else:
        for problem in answer["problems"]:
            note(str(problem))
    if not answer["ok"]:
        raise CommandError("nothing was changed; the configuration from before still serves")
    if not as_json:
        print("reloaded" if wait else "asked for a reload; `headrace status` and the log show how it ends")


def status(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Show the processes of a running headrace, and what it serves."""
    answer = _ask(config, "status")
    if as_json:
        print_json(answer)
    else:
        _print_table(answer)


def _ask(config: Path, verb: str, **arguments: Any) -> dict[str, Any]:
    from appliance.admin_client import call
    from appliance.config import locate_runtime_dir

    runtime_dir = locate_runtime_dir(config, os.environ, os.getuid())
    try:
        return call(runtime_dir, verb, **arguments)
    except PermissionError:
        message = f"may not talk to the headrace in {runtime_dir}: run this as root or as the user that serves"
        raise CommandError(message) from None
    except (FileNotFoundError, ConnectionRefusedError):
        message = f"no headrace serves {config}: nothing answers in {runtime_dir}; start it with `headrace serve`"
        raise CommandError(message, exit_codes.UNAVAILABLE) from None
    except OSError as error:
        message = f"the headrace in {runtime_dir} did not answer: {error}; see its log"
        raise CommandError(message, exit_codes.UNAVAILABLE) from None


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
