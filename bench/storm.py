"""A retry storm: how much of the load reaches an upstream that fails 30 % of it and slows down.

    python bench/storm.py [--quick] [--json FILE]

Headrace, nginx and HAProxy, each with the retries that it has by default, in front of two servers, with 50 and 200
clients. The instrument is bench/stormload.c: it offers at a fixed pace and counts what reaches the servers.
"""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import peers
from bench.processes import cores, free_port, instrument, run_json, server
from bench.report import Report, Row, arguments, ratio, versions
from bench.rounds import Figures, column, interleave

CLIENTS = (50, 200)
INTERVAL_MS = 100
FAIL_PERCENT = 30
WORK_US = 1000
SLOWDOWN = 20
FIRST_BYTE_S = 1
COUNTS = ("offered", "good", "origin_refused", "proxy_refused", "broken", "unanswered")


@contextmanager
def failing_servers(ramp_s: float) -> Iterator[tuple[int, int, int]]:
    """Two servers that count together. Yields (control port, port, port)."""
    control, one, other = free_port(), free_port(), free_port()
    arguments = [control, one, other, FAIL_PERCENT, WORK_US, SLOWDOWN, ramp_s]
    command = [instrument("stormload"), "origin", *map(str, arguments)]
    with server(command, port=control, core=cores()[1]):
        yield control, one, other


def ask(control_port: int, path: str) -> dict[str, int]:
    """The servers' counts; /reset begins them, and the slowing down, again."""
    connection = http.client.HTTPConnection("127.0.0.1", control_port, timeout=10)
    connection.request("GET", path)
    counts: dict[str, int] = json.loads(connection.getresponse().read())
    connection.close()
    return counts


def measure(peer: peers.Peer, ports: tuple[int, int, int], clients: int, seconds: float) -> Figures:
    """One round. {load (requests that reached the servers / offered), good, ... (shares of offered), p99_ms (good)}"""
    control, *servers = ports
    with peer(servers, cores()[0], peers.Setup(first_byte_s=FIRST_BYTE_S)) as running:
        ask(control, "/reset")
        command = [instrument("stormload"), "client", *map(str, (running.port, clients, INTERVAL_MS, seconds))]
        figures = run_json(command, core=cores()[1])
        reached = ask(control, "/count")["requests"]
    offered = figures["offered"]
    shares = {name: figures[name] / offered for name in COUNTS[1:]}
    return {"offered": offered, "load": reached / offered, **shares, "p99_ms": figures["ms"]["p99"]}


def main() -> None:
    options = arguments(__doc__)
    num_rounds, seconds = options.rounds or options.pick(3, 1, 1), options.pick(20.0, 10.0, 0.5)
    present, missing = peers.available("headrace", "nginx", "nginx, max_fails=0", "haproxy", "direct")
    rows: list[Row] = []
    load: dict[str, list[float]] = {name: [] for name in present}
    with failing_servers(seconds) as ports:
        for clients in CLIENTS:
            measures = {name: partial(measure, peer, ports, clients, seconds) for name, peer in present.items()}
            found = interleave(measures, num_rounds)
            rows += [{"peer": row["peer"], "clients": clients, **row} for row in found]
            for name, each in column(found, "load").items():
                load[name].append(each)

    worst = {name: max(each) for name, each in load.items()}
    if not 0.9 < worst["direct"] < 1.1:
        raise SystemExit(f"without a proxy {worst['direct']:.2f} of the load reached the servers: they miscount")
    Report(
        name="storm",
        method=(
            f"{' and then '.join(map(str, CLIENTS))} clients, each a GET per {INTERVAL_MS} ms or when its last ended, "
            f"{seconds:g} s; two servers fail {FAIL_PERCENT} % (closed, reset, 503), answer the others after "
            f"{WORK_US / 1000:g} ms for each request in work, and become {SLOWDOWN} times slower meanwhile; an answer "
            f"may take {FIRST_BYTE_S} s to begin; retries as each peer has them by default, and nginx also without "
            f"leaving servers alone; one worker on one core; {num_rounds} interleaved rounds, "
            "medians; load: requests that reached the servers for each one offered"
        ),
        versions={**versions("headrace", "uvloop", "httptools"), **peers.versions()},
        rows=rows,
        ratios={
            "storm_extra_load": worst["headrace"],
            "storm_extra_load_nginx": worst.get("nginx"),
            "storm_extra_load_nginx_max_fails_0": worst.get("nginx, max_fails=0"),
            "storm_extra_load_haproxy": worst.get("haproxy"),
            "storm_good_vs_nginx": ratio(_good(rows, "headrace"), _good(rows, "nginx")),
        },
        notes=missing,
    ).finish(options.json)


def _good(rows: list[Row], peer: str) -> float | None:
    """Of what was offered, the share with a good answer, by the largest number of clients."""
    return next((float(row["good"]) for row in reversed(rows) if row["peer"] == peer), None)


if __name__ == "__main__":
    main()
