"""Processes on cores: C instruments built when needed, servers pinned, waited for and always ended.

Owns starting and stopping; knows nothing of what is measured. Everything listens on 127.0.0.1 only.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
START_TIMEOUT_S = 60.0
#: Has a command ended when this process is, in whatever way: one that is killed ends nothing itself. The kernel does it
#: when the thread ends that started the command, so it is the main one that starts servers.
_BOUND = ("setpriv", "--pdeathsig", "TERM")


def cores() -> tuple[int, int]:
    """(the core of the server under test, the core of load and origin); the same one where there is no other."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[min(1, len(allowed) - 1)]


@cache
def instrument(name: str, *, tls: bool = False) -> str:
    """The path of the program built from ``bench/NAME.c`` by ``cc -O2``, with OpenSSL for ``tls``. Raises SystemExit
    without a compiler, or without OpenSSL's headers."""
    directory = tempfile.mkdtemp(prefix="headrace-bench-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    program = f"{directory}/{name}"
    before, behind = (["-DWITH_TLS"], ["-lssl", "-lcrypto"]) if tls else ([], [])
    try:
        subprocess.run(["cc", "-O2", *before, "-o", program, str(HERE / f"{name}.c"), *behind], check=True)
    except FileNotFoundError:
        raise SystemExit(f"{name}.c needs a C compiler named cc: install gcc or clang and run again") from None
    except subprocess.CalledProcessError:
        if not tls:
            raise
        raise SystemExit(f"{name}.c needs OpenSSL's headers for TLS: apt-get install libssl-dev, run again") from None
    return program


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_json(command: Sequence[str], *, core: int) -> dict[str, Any]:
    """Runs ``command`` on ``core`` and returns the JSON object that it prints."""
    done = subprocess.run(["taskset", "-c", str(core), *command], check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@contextmanager
def server(command: Sequence[str], *, port: int, core: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Runs ``command`` (on ``core``, if given), yields once ``port`` accepts, and ends it with SIGTERM, then SIGKILL.

    Its output is shown only if it ends before it listens, in the SystemExit that is raised then.
    """
    pinned = [*(["taskset", "-c", str(core)] if core is not None else []), *command]
    with _running(pinned, lambda: socket.create_connection(("127.0.0.1", port), timeout=1).close()) as process:
        yield process


@contextmanager
def unix_server(command: Sequence[str], *, path: str) -> Iterator[subprocess.Popen[bytes]]:
    """As ``server``, for a command that listens on the unix socket ``path``."""

    def connect() -> None:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)

    with _running(command, connect) as process:
        yield process


@contextmanager
def _running(command: Sequence[str], connect: Callable[[], None]) -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([*_BOUND, *command], stdout=output, stderr=output, start_new_session=True)
        try:
            _wait_until_listening(process, connect)
        except TimeoutError as problem:
            _end(process)
            output.seek(0)
            raise SystemExit(f"{' '.join(command)}: {problem}\n{output.read().decode(errors='replace')}") from None
        try:
            yield process
        finally:
            _end(process)


def _wait_until_listening(process: subprocess.Popen[bytes], connect: Callable[[], None]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise TimeoutError(f"ended with {process.returncode} before it listened")
        try:
            connect()
            return
        except OSError:
            time.sleep(0.02)
    raise TimeoutError(f"did not listen within {START_TIMEOUT_S:.0f} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process and its threads have used, to the nanosecond: its CPU-time clock, whose
    number is made as clock_getcpuclockid(3) makes it."""
    return time.clock_gettime((~pid << 3) | 2)


def child_of(pid: int, role: str | None = None) -> int:
    """The child of a process whose command line has the word ``role``, or its only one. Raises SystemExit if there is
    none within ten seconds: a server may listen before it has forked what serves."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found = [int(child) for child in children if role is None or role in _words(child)]
        if len(found) == 1 or (found and role is not None):
            return found[0]
        time.sleep(0.02)
    raise SystemExit(f"process {pid} has no {role or 'single one'} among its children")


def _words(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:  # ended meanwhile
        return []
