"""``python -m proxy CONFIG.json``: one proxy worker alone, without the appliance. For trying, testing and measuring.

The file is a ``ProxyConfig`` as JSON; certificates and keys are read from the paths it names.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
from pydantic import ValidationError

from proxy.config_routes import ProxyConfig
from proxy.worker import BuildError, ProxyWorker

_DRAIN_S = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then drain. 0: served; 2: the configuration cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m proxy", description="Run one proxy worker alone.")
    parser.add_argument("config", type=Path, help="a ProxyConfig as JSON")
    parser.add_argument("--access-log", action="store_true", help="write the access log to standard output")
    options = parser.parse_args(arguments)
    try:
        config = ProxyConfig.model_validate_json(options.config.read_bytes())
        materials = {path: Path(path).read_bytes() for path in _material_paths(config.model_dump(mode="json"))}
        sockets = {listener.address: bind(listener.address) for listener in config.listeners}
        uvloop.run(_serve(config, materials, sockets, 1 if options.access_log else None))
    except (OSError, ValidationError, BuildError) as error:
        print(f"python -m proxy: {error}", file=sys.stderr)
        return 2
    return 0


def bind(address: str) -> socket.socket:
    """A bound TCP socket for ``HOST:PORT`` or ``[IPV6]:PORT``. Raises OSError."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((host, int(port)))
    return bound


async def _serve(
    config: ProxyConfig, materials: dict[str, bytes], sockets: dict[str, socket.socket], log_fd: int | None
) -> None:
    worker = ProxyWorker(access_log_fd=log_fd)
    await worker.commit(await worker.build(config, materials, sockets))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await worker.drain(_DRAIN_S)


def _material_paths(table: Any) -> Iterator[str]:
    """Every value under a key that names a file of certificates or keys."""
    if isinstance(table, dict):
        for key, value in table.items():
            if key in ("cert", "key", "ca", "keys") and isinstance(value, str) and "/" in value:
                yield value
            else:
                yield from _material_paths(value)
    elif isinstance(table, list):
        for item in table:
            yield from _material_paths(item)


if __name__ == "__main__":
    sys.exit(main())
