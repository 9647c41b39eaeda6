"""The command line: which commands there are, and how every failure becomes one sentence and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import typer

from appliance import exit_codes
from appliance.commands import breaker, cert, control, events, keys, model, model_orders, route, serve, variants
from appliance.commands.terminal import CommandError, JsonOption, note, print_json

_EPILOG = """\b
Exit codes:
  0    done
  1    the command was tried and failed; standard error says why
  2    the arguments are not understood
  69   no running headrace to talk to
  70   an internal fault
  73   an address is in use, or a directory cannot be written
  78   the configuration, or a model, cannot work: see `headrace check`
  130  interrupted
"""

app = typer.Typer(
    help="Headrace: an edge reverse proxy and a model-serving appliance.",
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain errors, and a start without rich
    pretty_exceptions_enable=False,
)
app.command()(serve.serve)
app.command()(serve.check)
app.command()(control.reload)
app.command()(control.status)
app.command()(events.events)
model.app.command()(model_orders.served)
model.app.command()(model_orders.load)
model.app.command()(model_orders.unload)
model.app.command()(model_orders.swap)
app.add_typer(breaker.app, name="breaker")
app.add_typer(variants.app, name="variants")
app.add_typer(model.app, name="model")
app.add_typer(keys.app, name="keys")
app.add_typer(cert.app, name="cert")
app.add_typer(route.app, name="route")


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    number = installed("headrace")
    if as_json:
        print_json({"headrace": number, "python": ".".join(map(str, sys.version_info[:3]))})
    else:
        print(f"headrace {number}")


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code; never raises."""
    try:
        app(args=list(arguments), prog_name="headrace")
    except SystemExit as end:  # the normal end: typer exits
        return end.code if isinstance(end.code, int) else exit_codes.OK if end.code is None else exit_codes.FAILED
    except CommandError as error:
        note(f"headrace: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return exit_codes.FORCED
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        note(f"headrace: internal fault, please report it: {what}")
        return exit_codes.INTERNAL
    return exit_codes.OK


def main() -> NoReturn:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
