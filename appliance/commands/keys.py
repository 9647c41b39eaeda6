"""``headrace keys``: API keys in a file, of which only hashes are kept; and what was used with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from appliance.commands import usage
from appliance.commands.terminal import CommandError, JsonOption, note, os_error, print_json

if TYPE_CHECKING:
    from proxy.keys import Allowed

FileOption = Annotated[
    Path, typer.Option("--file", "-f", metavar="FILE", help="The file that `auth: {keys: FILE}` of a route names.")
]
DEFAULT_FILE = Path("/etc/headrace/keys.yaml")

app = typer.Typer(help="Make, list and revoke API keys, and see what they use.", no_args_is_help=True)
app.command()(usage.usage)


@app.command()
def add(
    file: FileOption = DEFAULT_FILE,
    key_id: Annotated[
        str | None, typer.Option("--id", metavar="NAME", help="What logs call the key; otherwise key-1, key-2, ...")
    ] = None,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Whose key it is, for limits and budgets.")] = "",
    team: Annotated[str, typer.Option(metavar="NAME", help="The team within the tenant.")] = "",
    priority: Annotated[bool, typer.Option("--priority", help="It may say X-Priority.")] = False,
    context: Annotated[bool, typer.Option("--context", help="It may pass the context guard.")] = False,
    upstream: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="It may choose this upstream; may be given again.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="It may use this model only, or those that begin so: qwen*; again: others."),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TOKENS", help="Its own amount of a budget by api_key; again: of another one."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key, print it once, and keep only its hash."""
    from appliance.keys import add_key
    from proxy.keys import Allowed

    allow = Allowed(priority, context, tuple(upstream or ()), tuple(model) if model else None)
    with _explained(file, "write"):
        key_id, key = add_key(
            file, key_id, datetime.now(UTC), tenant=tenant, team=team, allow=allow, budgets=_budgets(budget or [])
        )
    if as_json:
        print_json({"id": key_id, "key": key})
        return
    note(f"The key {key_id}, shown this once; {file} keeps only its hash. It is valid after `headrace reload`.")
    print(key)


@app.command("list")
def list_(file: FileOption = DEFAULT_FILE, as_json: JsonOption = False) -> None:
    """List the keys by id, without the keys, which nobody has any more."""
    from appliance.keys import read_keys

    with _explained(file, "read"):
        entries = read_keys(file)
    if as_json:
        shown = ("id", "created", "revoked", "tenant", "team")
        print_json(
            [
                {name: getattr(each, name) or None for name in shown}
                | {"allow": each.allow._asdict(), "budgets": each.budgets_by_name()}
                for each in entries
            ]
        )
        return
    for entry in entries:
        state = f"revoked {entry.revoked}" if entry.revoked is not None else "valid"
        whose = "/".join(name for name in (entry.tenant, entry.team) if name)
        words = [
            entry.id,
            f"created {entry.created or 'at an unknown time'}",
            state,
            *([f"of {whose}"] if whose else ()),
        ]
        budgets = (f"{amount} {unit} of {name}" for name, unit, amount in entry.budgets)
        print("  ".join([*words, *_spell_allowed(entry.allow), *budgets]))


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID")], file: FileOption = DEFAULT_FILE, as_json: JsonOption = False
) -> None:
    """Revoke a key: requests with it are refused after the next reload."""
    from appliance.keys import revoke_key

    with _explained(file, "write"):
        entry = revoke_key(file, key_id, datetime.now(UTC))
    if as_json:
        print_json({"id": entry.id, "revoked": entry.revoked})
        return
    note(f"The key {entry.id} is revoked since {entry.revoked}; it is refused after `headrace reload`.")


def _spell_allowed(allow: Allowed) -> Iterator[str]:
    """By the names of the options that gave it."""
    yield from (name for name in ("priority", "context") if getattr(allow, name))
    if allow.upstreams:
        yield f"upstreams {', '.join(allow.upstreams)}"
    if allow.models is not None:
        yield f"models {', '.join(allow.models) or 'none'}"


def _budgets(given: list[str]) -> tuple[tuple[str, str, int], ...]:
    amounts = []
    for each in given:
        name, equals, tokens = each.partition("=")
        if not (name and equals and tokens.isascii() and tokens.isdigit()):
            raise typer.BadParameter(f"{each!r} is not understood; write NAME=TOKENS", param_hint="--budget")
        amounts.append((name, "tokens", int(tokens)))
    return tuple(amounts)


@contextmanager
def _explained(file: Path, action: str) -> Iterator[None]:
    from proxy.keys import KeysError

    try:
        yield
    except KeysError as error:
        raise CommandError(f"{file}: {error}") from None
    except OSError as error:
        raise os_error(error, f"{action} {file}") from None
