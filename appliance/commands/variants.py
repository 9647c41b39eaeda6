"""``headrace variants``: what is tried beside the control on the routes of a running headrace, and how it does."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from appliance.commands.control import ask
from appliance.commands.terminal import DEFAULT_CONFIG, CommandError, ConfigOption, JsonOption, print_json

Route = Annotated[str, typer.Argument(metavar="ROUTE", help="The route's name.")]
AnyRoute = Annotated[str | None, typer.Argument(metavar="[ROUTE]", help="The route's name; otherwise all.")]
Variant = Annotated[str, typer.Argument(metavar="VARIANT", help="A key of the route's `variants: {of: ...}`.")]
AnyVariant = Annotated[str | None, typer.Argument(metavar="[VARIANT]", help="One variant; otherwise all.")]

app = typer.Typer(help="See how the variants of routes do, and change their shares.")


@app.callback(invoke_without_command=True)
def show(context: typer.Context, config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """See how the variants of routes do, and change their shares; without a command: list all."""
    if context.invoked_subcommand is None:
        _order("list", None, None, 0.0, config, as_json)


@app.command("list")
def list_(route: AnyRoute = None, config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Show what was counted of each variant, and whether it differs from the control."""
    _order("list", route, None, 0.0, config, as_json)


@app.command("set", context_settings={"ignore_unknown_options": True})  # -1% is a share, though none that can be
def set_(
    route: Route,
    variant: Variant,
    share: Annotated[str, typer.Argument(metavar="SHARE", help="Of the users, like 10%; 0%: nobody gets it.")],
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Give a variant another share of the users, until the configuration says another one. Also starts one again that
    a rule has stopped."""
    _order("set", route, variant, _fraction(share), config, as_json)


@app.command()
def reset(
    route: Route, variant: AnyVariant = None, config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False
) -> None:
    """Begin anew: forget what was counted, ordered and stopped, of a variant or of all and the control."""
    _order("reset", route, variant, 0.0, config, as_json)


def _order(order: str, route: str | None, variant: str | None, share: float, config: Any, as_json: bool) -> None:
    answer = ask(config, "variants", order=order, route=route, variant=variant, share=share)
    if not answer["ok"]:
        raise CommandError("; ".join(answer["problems"]))
    if as_json:
        print_json(answer["variants"])
        return
    for name, rows in answer["variants"].items():
        print(f"route {name}")
        print("\n".join(spell(rows)))
    if not answer["variants"]:
        print("no route has variants")


def spell(rows: list[dict[str, Any]]) -> list[str]:
    """A route's table for a person: columns that nothing is known of are left out."""
    table = [_COLUMNS, *(_cells(row) for row in rows)]
    shown = [i for i in range(len(_COLUMNS)) if any(cells[i] for cells in table[1:])]
    widths = {i: max(len(cells[i]) for cells in table) for i in shown}
    lines = []
    for cells in table:
        words = [cells[i].ljust(widths[i]) if i in _LEFT else cells[i].rjust(widths[i]) for i in shown]
        lines.append(f"  {'  '.join(words)}".rstrip())
    return lines


_COLUMNS = (
    "variant", "share", "requests", "success", "gone", "answer", "first byte", "first token", "tokens in", "tokens out",
    "outcomes", "good", "z", "p", "verdict",
)  # fmt: skip
_LEFT = {0, len(_COLUMNS) - 1}


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    verdict = row.get("verdict", "")
    if row["stopped"] is not None:
        verdict = f"{verdict}; stopped for {row['stopped']} {row['stopped_for_s']:.0f} s ago"
    return (
        row["variant"],
        f"{row['share'] * 100:g}%",
        str(row["requests"]),
        _percent(row["good"], row["requests"]),
        _number(row["gone"]),
        *(_ms(row[name]) for name in ("answer_s", "first_byte_s", "first_token_s")),
        *(_number(row[name]) for name in ("prompt_tokens", "completion_tokens", "outcomes")),
        _percent(row["good_outcomes"], row["outcomes"]),
        f"{row['z']:.2f}" if "z" in row else "",
        f"{row['p']:.3g}" if "p" in row else "",
        verdict,
    )


def _number(value: int) -> str:
    return str(value) if value else ""


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else ""


def _ms(seconds: float | None) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds is not None else ""


def _fraction(text: str) -> float:
    from proxy.units import parse_percent

    try:
        return parse_percent(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="SHARE") from None
