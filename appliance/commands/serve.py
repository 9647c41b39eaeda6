"""``headrace serve`` and ``headrace check``: the configuration, run or only judged."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from appliance import exit_codes
from appliance.commands.terminal import DEFAULT_CONFIG, ConfigOption, JsonOption, note, print_json

if TYPE_CHECKING:
    from appliance.config.problems import Problem


def serve(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Serve in the foreground until SIGTERM or Ctrl-C; reload on SIGHUP."""
    from appliance.process import serve as run

    raise typer.Exit(run(config))


def check(
    config: ConfigOption = DEFAULT_CONFIG,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the effective configuration: defaults and includes resolved.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Judge a configuration and everything that it names, all problems at once. Changes nothing."""
    from appliance.config import ConfigurationError, load
    from appliance.config.dump import to_plain, to_yaml

    try:
        loaded = load(config)
    except ConfigurationError as error:
        if as_json:
            print_json({"ok": False, "problems": [_fields(each) for each in error.problems]})
        else:
            for problem in error.problems:
                note(str(problem))
        raise typer.Exit(exit_codes.CANNOT_BOOT) from None
    if as_json:
        effective = {"configuration": to_plain(loaded.effective)} if print_ else {}
        warnings = [_fields(each) for each in loaded.warnings]
        print_json({"ok": True, "files": [str(path) for path in loaded.sources], "warnings": warnings, **effective})
        return
    for warning in loaded.warnings:
        note(f"warning: {warning}")
    if print_:
        sys.stdout.write(to_yaml(loaded.effective))
    else:
        print(f"{config}: ok ({len(loaded.sources)} files)" if len(loaded.sources) > 1 else f"{config}: ok")


def _fields(problem: Problem) -> dict[str, Any]:
    return {field: getattr(problem, field) for field in ("file", "line", "column", "key", "message")}
