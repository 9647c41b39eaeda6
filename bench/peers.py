"""The proxies that are compared: each is started on a core in front of an origin and ended again.

Owns how each peer is run and which are here. A peer is called with the origin's port and a core, and is a context
that yields the port to ask.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.processes import HERE, free_port, server

Peer = Callable[[int, int], AbstractContextManager[int]]


@contextmanager
def headrace(origin_port: int, core: int) -> Iterator[int]:
    """The whole appliance, with one proxy worker and no models; supervisor and worker share the core."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
        file = _write("headrace.yaml.in", directory, port, origin_port)
        command = [sys.executable, "-P", "-m", "appliance.cli", "serve", "-c", file]
        with server(command, port=port, core=core):
            yield port


@contextmanager
def nginx(origin_port: int, core: int) -> Iterator[int]:
    """nginx with one worker, keep-alive to the origin and its default access log."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="headrace-nginx-") as directory:
        file = _write("nginx.conf.in", directory, port, origin_port)
        command = [_nginx_program() or "nginx", "-e", f"{directory}/error.log", "-c", file]
        with server(command, port=port, core=core):
            yield port


@contextmanager
def plain(origin_port: int, core: int) -> Iterator[int]:
    """``bench/plain_proxy.py``, on uvloop, with its access log."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="headrace-plain-") as directory:
        arguments = [str(port), str(origin_port), f"{directory}/access.log"]
        with server([sys.executable, str(HERE / "plain_proxy.py"), *arguments], port=port, core=core):
            yield port


@contextmanager
def direct(origin_port: int, core: int) -> Iterator[int]:
    """No proxy at all: what the instrument itself can do."""
    yield origin_port


def available() -> tuple[dict[str, Peer], list[str]]:
    """(the peers that can run here, by name; one sentence for each that cannot)."""
    peers: dict[str, Peer] = {"headrace": headrace, "plain": plain}
    if _nginx_program() is None:
        return peers, ["nginx is not installed and left out: apt-get install nginx"]
    return {"headrace": headrace, "nginx": nginx, "plain": plain}, []


def versions() -> dict[str, str]:
    """The versions of peers that are no Python distributions."""
    program = _nginx_program()
    if program is None:
        return {}
    shown = subprocess.run([program, "-v"], capture_output=True, text=True, check=True).stderr
    return {"nginx": shown.strip().rpartition("/")[2]}


def _nginx_program() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def configuration(template: str, directory: str, port: int, origin_port: int) -> str:
    """The text of ``bench/TEMPLATE`` with its places filled in."""
    values = {"DIRECTORY": directory, "PORT": str(port), "UPSTREAM_PORT": str(origin_port)}
    return re.sub(r"@([A-Z_]+)@", lambda found: values[found[1]], (HERE / template).read_text())


def _write(template: str, directory: str, port: int, origin_port: int) -> str:
    path = Path(directory) / template.removesuffix(".in")
    path.write_text(configuration(template, directory, port, origin_port))
    return str(path)
