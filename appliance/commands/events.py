"""``headrace events``: what has changed by itself in a running headrace."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from appliance.commands.control import ask
from appliance.commands.terminal import DEFAULT_CONFIG, ConfigOption

_POLL_S: Final = 1.0


def events(
    config: ConfigOption = DEFAULT_CONFIG,
    after: Annotated[
        int, typer.Option("--after", min=0, metavar="ID", help="Only those that came after this one.")
    ] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on, and show those to come.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
) -> None:
    """Show the last thousand events: transitions of breakers, models that degrade, variants that are stopped."""
    while True:
        for event in ask(config, "events", after=after)["events"]:
            after = event["id"]
            print(json.dumps(event, ensure_ascii=False) if as_json else spell(event), flush=True)
        if not follow:
            return
        time.sleep(_POLL_S)


def spell(event: dict[str, Any]) -> str:
    """One event in a line for a person, in local time."""
    return f"{datetime.fromisoformat(event['at']).astimezone():%Y-%m-%d %H:%M:%S} {event['process']}: {event['text']}"
