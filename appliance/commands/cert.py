"""``headrace cert``: certificates that need nobody else."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from appliance.commands.terminal import CommandError, JsonOption, os_error, print_json

app = typer.Typer(help="Make certificates.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps ``local`` a subcommand although it is the only one."""


@app.command()
def local(
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the CA and the certificate lie.")],
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME", help="A further name or address. May be repeated.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a local CA and a certificate for this box, or renew what is there and ends within 30 days."""
    from appliance.certs import CertificateError, ensure_local
    from appliance.hosts import LOOPBACK, own_hosts, parse_host

    try:
        named = [parse_host(each) for each in (*LOOPBACK, *(host or ()))]
        made = ensure_local(directory, named, datetime.now(UTC), wanted=own_hosts())
    except (CertificateError, ValueError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise os_error(error, f"make a certificate in {directory}") from None
    if as_json:
        print_json(
            {
                "ca": str(made.ca),
                "cert": str(made.cert),
                "key": str(made.key),
                "hosts": made.hosts,
                "expires": made.expires_at.isoformat(),
                "made_ca": made.made_ca,
                "made_cert": made.made_cert,
            }
        )
        return
    print(f"CA: {made.ca} ({'made' if made.made_ca else 'kept'})")
    print(f"certificate: {made.cert} ({'made' if made.made_cert else 'kept'}), until {made.expires_at:%Y-%m-%d}")
    print(f"names: {', '.join(made.hosts)}")
    print(f"Clients must trust the CA. Hand out {made.ca} (it is no secret; {made.ca.with_suffix('.key').name} is):")
    print("  curl --cacert ca.pem ...; Python: ssl.create_default_context(cafile='ca.pem')")
    print("  Debian, Ubuntu: copy it to /usr/local/share/ca-certificates/headrace.crt, then update-ca-certificates")
