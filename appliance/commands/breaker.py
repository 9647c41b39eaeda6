"""``headrace breaker``: the circuit breakers of a running headrace, seen and forced."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from appliance.commands.control import ask
from appliance.commands.terminal import DEFAULT_CONFIG, CommandError, ConfigOption, JsonOption, print_json

Upstream = Annotated[str, typer.Argument(metavar="UPSTREAM", help="A key of `upstreams`, or engine.")]
AnyUpstream = Annotated[
    str | None, typer.Argument(metavar="[UPSTREAM]", help="A key of `upstreams`, or engine; otherwise all.")
]

app = typer.Typer(help="See and force the circuit breakers of a running headrace.", no_args_is_help=True)


@app.command("list")
def list_(upstream: AnyUpstream = None, config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Show the state of breakers: since when, what was counted, and when the next probe goes."""
    _order("list", upstream, None, config, as_json)


@app.command("open")
def open_(
    upstream: Upstream,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="For so long, like 5m; then probes. Otherwise for good.")
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Refuse all requests to an upstream with 503 and Retry-After, until the time is over or another order."""
    _order("open", upstream, _seconds(for_), config, as_json)


@app.command()
def close(upstream: Upstream, config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Let all requests to an upstream pass, however it answers, until a reset."""
    _order("close", upstream, None, config, as_json)


@app.command()
def reset(upstream: AnyUpstream = None, config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """End what was forced and forget what was counted: closed, and judging by itself again."""
    _order("reset", upstream, None, config, as_json)


def _order(order: str, upstream: str | None, for_s: float | None, config: Any, as_json: bool) -> None:
    answer = ask(config, "breakers", order=order, upstream=upstream, for_s=for_s)
    if not answer["ok"]:
        raise CommandError("; ".join(answer["problems"]))
    if as_json:
        print_json(answer["breakers"])
        return
    now = datetime.now()
    for name, row in answer["breakers"].items():
        print(spell(name, row, now))
    if not answer["breakers"]:
        print("there are no upstreams")


def spell(name: str, row: dict[str, Any], now: datetime) -> str:
    """One breaker in a line for a person. now: local time."""
    since_s = row["since_s"]
    since = "since the start"
    if since_s is not None:
        since = f"since {(now - timedelta(seconds=since_s)):%Y-%m-%d %H:%M:%S}, {row['cause']}"
    words = [f"{name}: {row['state']}{' (forced)' if row['forced'] else ''} {since}"]
    words.append(f"{row['failed']} of {row['requests']} requests failed")
    if row["refused"]:
        words.append(f"{row['refused']} refused")
    if row["first_byte_s"] is not None:
        words.append(f"first byte {row['first_byte_s'] * 1000:.1f} ms")
    if "probes" in row:
        probes, next_s = row["probes"], row["next_probe_s"]
        if row["state"] == "half-open":
            words.append("probes: {given} given, {in_flight} in flight, {good} good, {failed} failed".format(**probes))
        words.append(f"next probe in {next_s:.0f} s" if next_s else "next probe now" if next_s == 0 else "no probe")
    return "; ".join(words)


def _seconds(text: str | None) -> float | None:
    from proxy.units import parse_duration

    if text is None:
        return None
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--for") from None
    if seconds <= 0:
        raise typer.BadParameter("write a time above 0, like 5m", param_hint="--for")
    return seconds
