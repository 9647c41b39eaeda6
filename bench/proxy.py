"""Small requests through one proxy worker on one core: Headrace, nginx and a plain aiohttp proxy in one run.

    python bench/proxy.py [--quick] [--json FILE]

Also times the policy chain alone, in this process, over the configuration that is measured.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find this file
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import chain, peers
from bench.processes import cores, free_port, instrument, run_json, server
from bench.report import Report, arguments, ratio, versions
from bench.rounds import Figures, column, interleave

CONNECTIONS = 32
BODY_BYTES = 128
WARMUP_S = 0.5


def measure(peer: peers.Peer, origin_port: int, seconds: float) -> Figures:
    """One round: starts the peer on the first core, loads it from the other. {requests_per_s, p50_ms, p99_ms}."""
    server_core, load_core = cores()
    with peer(origin_port, server_core) as port:
        command = [instrument("getload"), "client", str(port), "/", str(CONNECTIONS), str(WARMUP_S), str(seconds)]
        figures = run_json(command, core=load_core)
    if figures["errors"]:
        raise SystemExit(f"{figures['errors']} of the requests failed: the figures would mean nothing")
    return {
        "requests_per_s": float(figures["requests_per_s"]),
        "p50_ms": figures["ms"]["p50"],
        "p99_ms": figures["ms"]["p99"],
    }


def main() -> None:
    options = arguments(__doc__)
    num_rounds, seconds = options.rounds or (3 if options.quick else 7), 2.0 if options.quick else 5.0
    present, missing = peers.available()
    origin_port = free_port()
    origin = [instrument("getload"), "origin", str(origin_port), str(BODY_BYTES)]
    with server(origin, port=origin_port, core=cores()[1]):
        measures = {name: partial(measure, peer, origin_port, seconds) for name, peer in present.items()}
        rows = interleave(measures, num_rounds)

    policies = chain.policy_names()
    speed = column(rows, "requests_per_s")
    Report(
        name="proxy",
        method=(
            f"GET of {BODY_BYTES} bytes, {CONNECTIONS} keep-alive connections, each peer with one worker on one core, "
            f"load and origin on another; {num_rounds} interleaved rounds of {seconds:g} s, medians. Headrace runs its "
            f"policies ({', '.join(policies)}) and its breaker; all write access logs into files; "
            f"chain_us: admit, respond and settle of these {len(policies)} policies alone, in microseconds a request"
        ),
        versions={**versions("headrace", "aiohttp", "uvloop", "httptools"), **peers.versions()},
        rows=rows,
        ratios={
            "small_get_vs_nginx": ratio(speed["headrace"], speed.get("nginx")),
            "small_get_vs_plain": ratio(speed["headrace"], speed.get("plain")),
            "chain_us": chain.time_chain_us(),
        },
        notes=missing,
    ).finish(options.json)


if __name__ == "__main__":
    main()
