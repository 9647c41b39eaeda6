"""``headrace model served``, ``load``, ``unload`` and ``swap``: the models of a running headrace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from appliance.commands.control import ask
from appliance.commands.terminal import DEFAULT_CONFIG, CommandError, ConfigOption, JsonOption, print_json

Name = Annotated[str, typer.Argument(metavar="NAME", help="As requests call it; `headrace model served` lists them.")]


def served(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """List what a running headrace serves, and whether it can."""
    _order(config, as_json, "list")


def load(name: Name, config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Load a model's folder as it is now, beside what serves; then requests move to it.

    NAME is a key of `models`, or a folder of `models.repository`, also one that was put there meanwhile. When it cannot
    be loaded, what serves goes on.
    """
    _order(config, as_json, "load", name)


def unload(name: Name, config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Give a model no more requests until it is loaded again; those that it has go on, then its memory is freed."""
    _order(config, as_json, "unload", name)


def swap(
    name: Name,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Another model folder.")],
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Serve another folder under a model's name, as `load` does, until the engine is started anew.

    To keep it, set `models.NAME.path` before the next reload.
    """
    _order(config, as_json, "swap", name, str(path.resolve()))


def _order(config: Path, as_json: bool, order: str, name: str = "", path: str = "") -> None:
    answer: dict[str, Any] = ask(config, "models", order=order, name=name, path=path)
    if not answer["ok"]:
        raise CommandError("; ".join(answer["problems"]))
    if as_json:
        print_json(answer["models"])
        return
    for row in answer["models"]:
        if name in ("", row["name"]):
            print("  ".join(filter(None, [row["name"], row["state"], row["reason"]])))
