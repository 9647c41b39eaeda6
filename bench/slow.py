"""Clients that are slow on purpose: does a client beside them get its answers as before?

    python bench/slow.py [--quick] [--json FILE]

Debian's slowhttptest in its four ways (-H heads, -B bodies, -R ranges, -X reads) against Headrace and nginx, up to
twenty seconds each. A probing client, from another address, opens a connection per request without an attack and during
each.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import loads, peers
from bench.first_token import percentile
from bench.processes import cores
from bench.report import Report, Row, arguments, versions

ATTACKS = {"none": "", "heads": "-H", "bodies": "-B", "ranges": "-R", "reads": "-X"}
CONNECTIONS = 800
PER_S = 200
PROBE_ADDRESS = "127.0.0.2"  # a limit of connections per client is to meet the attacker alone
PROBE_EVERY_S = 0.05
PROBE_TIMEOUT_S = 5.0
PATHS = {"-B": "/sink", "-X": f"/{1 << 20}"}  # an upstream that waits for the body; an answer that is large


@contextmanager
def attack(port: int, flag: str, seconds: float, connections: int) -> Iterator[None]:
    """Runs slowhttptest for so long; it is ended with the block at the latest."""
    url = f"http://127.0.0.1:{port}{PATHS.get(flag, '/')}"
    command = [
        "taskset",
        "-c",
        cores()[1],
        "slowhttptest",
        flag,
        "-c",
        connections,
        "-r",
        PER_S,
        "-i",
        2,
        "-l",
        int(seconds) + 1,
        "-u",
        url,
        "-v",
        0,
    ]
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def probe(port: int, seconds: float) -> list[float | None]:
    """Milliseconds from connecting to the whole of a small answer, again and again; None for each that failed."""
    found: list[float | None] = []
    end_at = time.monotonic() + seconds
    while time.monotonic() < end_at:
        found.append(_probe_ms(port))
        time.sleep(PROBE_EVERY_S)
    return found


def _probe_ms(port: int) -> float | None:
    begun_at = time.perf_counter()
    try:
        with socket.create_connection(("127.0.0.1", port), PROBE_TIMEOUT_S, (PROBE_ADDRESS, 0)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
    except OSError:
        return None
    is_whole = answer.startswith(b"HTTP/1.1 200") and len(answer.partition(b"\r\n\r\n")[2]) >= loads.SMALL_BYTES
    return (time.perf_counter() - begun_at) * 1e3 if is_whole else None


def established(port: int) -> int:
    """How many connections the server at ``port`` has, as the kernel counts them."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(words[1].endswith(f":{port:04X}") and words[3] == "01" for words in lines)


def measure(peer: peers.Peer, origin_port: int, flag: str, seconds: float, connections: int) -> Row:
    """One attack, or none, on a fresh process. {slow (connections of the attack at its end), probes, failed, ...}"""
    with (
        peer([origin_port], cores()[0], peers.Setup()) as running,
        attack(running.port, flag, seconds, connections) if flag else nullcontext(),
    ):
        found = probe(running.port, seconds)
        num_slow = established(running.port)
    good = [ms for ms in found if ms is not None] or [float("nan")]
    times = {"p50_ms": percentile(good, 0.5), "p99_ms": percentile(good, 0.99), "max_ms": max(good)}
    return {"slow": num_slow, "probes": len(found), "failed": sum(ms is None for ms in found), **times}


def main() -> None:
    options = arguments(__doc__)
    if shutil.which("slowhttptest") is None:
        raise SystemExit("slowhttptest is not installed: apt-get install --no-install-recommends slowhttptest")
    seconds, connections = options.pick(20.0, 6.0, 0.3), options.pick(CONNECTIONS, CONNECTIONS // 2, 20)
    present, missing = peers.available("headrace", "nginx")
    with loads.origin() as port:
        rows: list[Row] = [
            {"peer": name, "attack": called, **measure(peer, port, flag, seconds, connections)}
            for called, flag in ATTACKS.items()
            for name, peer in present.items()
        ]

    ours = [row for row in rows if row["peer"] == "headrace"]
    Report(
        name="slow",
        method=(
            f"slowhttptest -H, -B, -R and -X, {connections} connections at {PER_S} a second, for {seconds:g} s each "
            f"on a fresh process; a probe every {PROBE_EVERY_S * 1e3:g} ms from another address, on a new connection, "
            "connecting and closing included; one worker on one core"
        ),
        versions={**versions("headrace", "uvloop", "httptools"), **peers.versions(), "slowhttptest": _version()},
        rows=rows,
        ratios={
            "slow_probe_failures": float(sum(row["failed"] for row in ours)),
            **{f"slow_{row['attack']}_probe_p99_ms": row["p99_ms"] for row in ours},
        },
        notes=missing,
    ).finish(options.json)


def _version() -> str:
    shown = subprocess.run(["slowhttptest", "-h"], capture_output=True, text=True, check=False)
    return (shown.stdout + shown.stderr).partition("version ")[2].split("\n")[0].split(" ")[0] or "?"


if __name__ == "__main__":
    main()
