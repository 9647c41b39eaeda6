"""The proxies that are compared: each is started on a core in front of origins and ended again.

Owns how each peer is run and which are here. A peer is called with the origins' ports, a core and a ``Setup``, and is a
context that yields where to ask and the process that carries the connections.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.processes import HERE, child_of, free_port, server

ROOT = HERE.parent
COMPILED = ROOT / "build" / "compiled"  # made by `install.sh compile`


def is_compiled() -> bool:
    """Whether there is a compiled copy of these very sources: of all that runs there, not only of what is compiled."""
    return any(COMPILED.glob("proxy/*.so")) and all(
        (COMPILED / source.relative_to(ROOT)).is_file()
        and (COMPILED / source.relative_to(ROOT)).read_bytes() == source.read_bytes()
        for package in ("appliance", "engine", "proxy")
        for source in ROOT.glob(f"{package}/**/*.py")
    )


HEADRACE = [
    *(["env", f"PYTHONPATH={COMPILED}"] if is_compiled() else []),
    *(sys.executable, "-P", "-m", "appliance.cli"),
]


@dataclass(frozen=True)
class Setup:
    """What a benchmark asks of every peer. tls: a directory with localhost.pem and localhost.key, to listen with TLS.
    plain_too: Headrace listens without TLS as well. first_byte_s: how long an answer may take to begin. policies:
    further lines of Headrace's route."""

    tls: str | None = None
    plain_too: bool = False
    first_byte_s: int = 60
    policies: str = ""


class Running(NamedTuple):
    """port: of 127.0.0.1. pid: of the process that carries the connections; 0: none. directory: of its files.
    plain_port: of the listener that is not the one asked for."""

    port: int
    pid: int
    directory: str = ""
    plain_port: int = 0


Peer = Callable[[Sequence[int], int, Setup], AbstractContextManager[Running]]


@contextmanager
def headrace(origin_ports: Sequence[int], core: int, setup: Setup) -> Iterator[Running]:
    """The whole appliance, with one proxy worker and no models; supervisor and worker share the core."""
    port, plain_port = free_port(), free_port() if setup.plain_too else 0
    with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
        file = Path(directory) / "headrace.yaml"
        file.write_text(headrace_yaml(directory, port, origin_ports, setup, plain_port))
        with server([*HEADRACE, "serve", "-c", str(file)], port=port, core=core) as process:
            yield Running(port, child_of(process.pid, "proxy"), directory, plain_port)


def headrace_yaml(directory: str, port: int, origin_ports: Sequence[int], setup: Setup, plain_port: int = 0) -> str:
    """The text of Headrace's configuration file."""
    cert = f"[{{cert: {setup.tls}/localhost.pem, key: {setup.tls}/localhost.key}}]"
    return fill(
        "headrace.yaml.in",
        DIRECTORY=directory,
        PORT=str(port),
        PLAIN="" if not plain_port else f"\n  - {{address: 127.0.0.1:{plain_port}}}",
        SERVERS=", ".join(f"http://127.0.0.1:{origin}" for origin in origin_ports),
        TLS="" if setup.tls is None else f", tls: {{certificates: {cert}}}",
        FIRST_BYTE_S=str(setup.first_byte_s),
        POLICIES="".join(f"\n      {line}" for line in setup.policies.splitlines()),
    )


@contextmanager
def nginx(
    origin_ports: Sequence[int], core: int, setup: Setup, *, buffering: bool = False, max_fails: int = 1
) -> Iterator[Running]:
    """nginx with one worker, keep-alive to the origins and its default access log. buffering: it reads answers ahead of
    the client, its default. max_fails: after so many failures it leaves an origin alone for ten seconds; 0: never."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="headrace-nginx-") as directory:
        file = Path(directory) / "nginx.conf"
        pair = f"ssl_certificate {setup.tls}/localhost.pem; ssl_certificate_key {setup.tls}/localhost.key;"
        text = fill(
            "nginx.conf.in",
            DIRECTORY=directory,
            PORT=str(port),
            SERVERS="\n        ".join(f"server 127.0.0.1:{origin} max_fails={max_fails};" for origin in origin_ports),
            TLS=";" if setup.tls is None else f" ssl;\n        {pair}",
            FIRST_BYTE_S=str(setup.first_byte_s),
            BUFFERING="on" if buffering else "off",
        )
        file.write_text(text)
        command = [_program("nginx") or "nginx", "-e", f"{directory}/error.log", "-c", str(file)]
        with server(command, port=port, core=core) as process:
            yield Running(port, child_of(process.pid), directory)


@contextmanager
def haproxy(origin_ports: Sequence[int], core: int, setup: Setup) -> Iterator[Running]:
    """HAProxy with one thread, keep-alive to the origins and its HTTP log."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="headrace-haproxy-") as directory:
        file = Path(directory) / "haproxy.cfg"
        if setup.tls is not None:
            pair = [Path(setup.tls, f"localhost.{kind}").read_text() for kind in ("pem", "key")]
            Path(directory, "pair.pem").write_text("".join(pair))
        text = fill(
            "haproxy.cfg.in",
            PORT=str(port),
            SERVERS="\n    ".join(f"server s{origin} 127.0.0.1:{origin}" for origin in origin_ports),
            TLS="" if setup.tls is None else f" ssl crt {directory}/pair.pem",
            FIRST_BYTE_S=str(setup.first_byte_s),
        )
        file.write_text(text)
        with server([_program("haproxy") or "haproxy", "-db", "-f", str(file)], port=port, core=core) as process:
            yield Running(port, process.pid, directory)


@contextmanager
def plain(origin_ports: Sequence[int], core: int, setup: Setup) -> Iterator[Running]:
    """``bench/plain_proxy.py``, on uvloop, with its access log: to the first origin, without TLS."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="headrace-plain-") as directory:
        arguments = [str(port), str(origin_ports[0]), f"{directory}/access.log"]
        command = [sys.executable, str(HERE / "plain_proxy.py"), *arguments]
        with server(command, port=port, core=core) as process:
            yield Running(port, process.pid, directory)


@contextmanager
def direct(origin_ports: Sequence[int], core: int, setup: Setup) -> Iterator[Running]:
    """No proxy at all: what the instrument itself can do."""
    yield Running(origin_ports[0], 0)


def available(*names: str) -> tuple[dict[str, Peer], list[str]]:
    """(those of the named peers that can run here; one sentence for each that cannot)."""
    known: dict[str, Peer] = {
        "headrace": headrace,
        "nginx": nginx,
        "nginx, buffering": partial(nginx, buffering=True),
        "nginx, max_fails=0": partial(nginx, max_fails=0),
        "haproxy": haproxy,
        "plain": plain,
        "direct": direct,
    }
    missing = sorted({name.partition(",")[0] for name in names} & {"nginx", "haproxy"} - set(_programs()))
    notes = [
        f"{name} is not installed and left out: apt-get install --no-install-recommends {name}" for name in missing
    ]
    return {name: known[name] for name in names if name.partition(",")[0] not in missing}, notes


def versions() -> dict[str, str]:
    """The versions of peers that are no Python distributions, and whether our own request path is compiled."""
    found = {"request path": "compiled" if is_compiled() else "interpreted"}
    for name, program in _programs().items():
        shown = subprocess.run([program, "-v"], capture_output=True, text=True, check=True)
        number = re.search(r"\d+\.\d+\.\d+\S*", shown.stdout + shown.stderr)
        found[name] = number[0] if number else "?"
    return found


def _programs() -> dict[str, str]:
    return {name: program for name in ("nginx", "haproxy") if (program := _program(name)) is not None}


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def fill(template: str, **values: str) -> str:
    """The text of ``bench/TEMPLATE`` with its places filled in."""
    return re.sub(r"@([A-Z_]+)@", lambda found: values[found[1]], (HERE / template).read_text())
