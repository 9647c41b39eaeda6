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
    answer = ask(config, "reload", wait=wait)
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
    answer = ask(config, "status")
    if as_json:
        print_json(answer)
    else:
        _print_tree(answer)


def ask(config: Path, verb: str, **arguments: Any) -> dict[str, Any]:
    """What the headrace of this configuration answers. Raises CommandError if none does; no other one does anything."""
    from appliance.admin_client import call
    from appliance.config import locate_runtime_dir

    runtime_dir, problems = locate_runtime_dir(config, os.environ, os.getuid())
    try:
        return call(runtime_dir, verb, configuration=config, **arguments)
    except OSError as error:
        if not problems:
            raise _explain(error, config, runtime_dir) from None
    for problem in problems:  # by them it was only likely where to look
        note(str(problem))
    message = f"found no headrace that serves {config}; mend the file and ask again"
    raise CommandError(message, exit_codes.CANNOT_BOOT)


def _explain(error: OSError, config: Path, runtime_dir: Path) -> CommandError:
    from appliance.admin_client import MisdirectedError

    match error:
        case PermissionError():
            message = f"may not talk to the headrace in {runtime_dir}: run this as root or as the user that serves"
            return CommandError(message)
        case MisdirectedError(serves=other):
            message = f"the headrace in {runtime_dir} serves {other}, not {config}; to ask it, say `-c {other}`"
        case FileNotFoundError() | ConnectionRefusedError():
            message = f"no headrace serves {config}: nothing answers in {runtime_dir}; start it with `headrace serve`"
        case _:
            message = f"the headrace in {runtime_dir} did not answer: {error}; see its log"
    return CommandError(message, exit_codes.UNAVAILABLE)


def _print_tree(table: dict[str, Any], indent: str = "") -> None:
    """The table for a person: at the top a line for each word; below it, all words of a table in one line."""
    for key, value in table.items():
        if isinstance(value, dict):
            _print_branch(key, value, indent)
        elif isinstance(value, list):
            print(f"{indent}{key}:" if value else f"{indent}{key}: none")
            for each in value:
                if isinstance(each, dict):
                    rest = {name: part for name, part in each.items() if name != "name"}
                    _print_branch(each["name"], rest, indent + "  ")
                else:
                    print(f"{indent}  {each}")
        elif not indent:
            print(f"{key}: {_spell(value)}")


def _print_branch(name: str, table: dict[str, Any], indent: str) -> None:
    words = [
        f"{key}={_spell(value)}"
        for key, value in table.items()
        if not isinstance(value, dict | list) and value not in ("", None)
    ]
    print("  ".join([f"{indent}{name}:", *words]))
    _print_tree({key: value for key, value in table.items() if value != []}, indent + "  ")


def _spell(value: Any) -> str:
    return {True: "yes", False: "no", None: "none"}[value] if value is None or isinstance(value, bool) else str(value)
