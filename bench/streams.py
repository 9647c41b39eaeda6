"""Server-sent events through one proxy worker on one core: how many streams pass without a stall.

    python bench/streams.py [--quick] [--json FILE]

Headrace, nginx, a plain aiohttp proxy and no proxy at all, in one run. The instrument is bench/sseload.c: each event
carries the time at which the origin wrote it, and a stream is free of stalls when it is complete and no event came
more than 50 ms after that.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import peers
from bench.processes import cores, free_port, instrument, run_json, server
from bench.report import Report, arguments, versions
from bench.rounds import Figures, column, interleave

STREAMS = 512
EVENTS_PER_S = 50
PAYLOAD_BYTES = 64
LATE_MS = 50


def measure(peer: peers.Peer, origin_port: int, num_events: int) -> Figures:
    """One round. {stall_free, complete (streams), p50_ms, p99_ms, max_ms (added per event)}."""
    server_core, load_core = cores()
    with peer(origin_port, server_core) as port:
        command = [instrument("sseload"), "client", str(port), "/", str(STREAMS), str(num_events), str(LATE_MS)]
        figures = run_json(command, core=load_core)
    added = {f"{name}_ms": added_ms for name, added_ms in figures["added_ms"].items()}
    return {"stall_free": figures["stall_free"], "complete": figures["complete"], **added}


def main() -> None:
    options = arguments(__doc__)
    num_rounds, seconds = options.rounds or (3 if options.quick else 5), 4 if options.quick else 10
    num_events = seconds * EVENTS_PER_S
    present, missing = peers.available()
    present["direct"] = peers.direct
    origin_port = free_port()
    interval_us = str(1_000_000 // EVENTS_PER_S)
    origin = [instrument("sseload"), "origin", str(origin_port), str(num_events), interval_us, str(PAYLOAD_BYTES)]
    with server(origin, port=origin_port, core=cores()[1]):
        measures = {name: partial(measure, peer, origin_port, num_events) for name, peer in present.items()}
        rows = interleave(measures, num_rounds)

    stall_free = column(rows, "stall_free")
    Report(
        name="streams",
        method=(
            f"{STREAMS} streams of {EVENTS_PER_S} events/s, {num_events} events of {PAYLOAD_BYTES} bytes each, late "
            f"after {LATE_MS} ms; each peer with one worker on one core, load and origin on another; {num_rounds} "
            "interleaved rounds, medians"
        ),
        versions={**versions("headrace", "aiohttp", "uvloop", "httptools"), **peers.versions()},
        rows=rows,
        ratios={"stall_free_512": stall_free["headrace"], "stall_free_512_nginx": stall_free.get("nginx")},
        notes=missing,
    ).finish(options.json)


if __name__ == "__main__":
    main()
