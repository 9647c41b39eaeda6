"""Server-sent events through one proxy worker on one core: how many streams pass without a stall.

    python bench/streams.py [--quick] [--tls] [--json FILE]

Headrace, nginx, HAProxy, a plain aiohttp proxy and no proxy at all, in one run; with --tls, those that speak it. The
instrument is bench/sseload.c: each event carries the time at which the origin wrote it, and a stream is free of stalls
when it is complete and no event came more than 50 ms after that.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import loads, peers
from bench.processes import cores
from bench.report import Report, Row, arguments, ratio, versions
from bench.rounds import Figures, column, interleave
from bench.tls import certificate

LOADS = ((512, 50), (1000, 25))  # (streams, events per second of each)
PAYLOAD_BYTES = 64
LATE_MS = 50


def measure(peer: peers.Peer, setup: peers.Setup, origin_port: int, streams: int, num_events: int) -> Figures:
    """One round."""
    with peer([origin_port], cores()[0], setup) as running:
        tls = setup.tls is not None
        return loads.read_events(running.port, streams=streams, num_events=num_events, late_ms=LATE_MS, tls=tls)


def main() -> None:
    options = arguments(
        __doc__, lambda parser: parser.add_argument("--tls", action="store_true", help="TLS to clients")
    )
    num_rounds, seconds = options.rounds or options.pick(5, 2, 1), options.pick(10.0, 4.0, 0.2)
    names = ("headrace", "nginx", "haproxy", *(() if options.tls else ("plain", "direct")))
    present, missing = peers.available(*names)
    rows: list[Row] = []
    ratios: dict[str, float | None] = {}
    suffix = "_tls" if options.tls else ""
    with ExitStack() as stack:
        setup = peers.Setup(tls=stack.enter_context(certificate()) if options.tls else None)
        for streams, events_per_s in LOADS:
            num_events, num = round(seconds * events_per_s), options.pick(streams, streams, streams // 20)
            with loads.event_origin(num_events, events_per_s, PAYLOAD_BYTES) as port:
                measures = {
                    name: partial(measure, peer, setup, port, num, num_events) for name, peer in present.items()
                }
                found = interleave(measures, num_rounds)
            rows += [{"peer": row["peer"], "streams": streams, **row} for row in found]
            stall_free, p99_ms = column(found, "stall_free"), column(found, "p99_ms")
            ratios[f"stall_free_{streams}{suffix}"] = stall_free["headrace"]
            for other in ("nginx", "haproxy"):
                ratios[f"stall_free_{streams}{suffix}_{other}"] = stall_free.get(other)
                if streams == LOADS[-1][0]:
                    ratios[f"stream_p99{suffix}_vs_{other}"] = ratio(p99_ms["headrace"], p99_ms.get(other))
    Report(
        name="streams",
        method=(
            f"{' and then '.join(f'{streams} streams of {rate} events/s' for streams, rate in LOADS)}, {seconds:g} s "
            f"of events of {PAYLOAD_BYTES} bytes{', over TLS to the client' if options.tls else ''}; added: from the "
            f"origin's write to the client's read, late after {LATE_MS} ms; each peer with one worker on one core, "
            f"load and origin on another; {num_rounds} interleaved rounds, medians; stream_p99: of {LOADS[-1][0]}"
        ),
        versions={**versions("headrace", "aiohttp", "uvloop", "httptools"), **peers.versions()},
        rows=rows,
        ratios=ratios,
        notes=missing,
    ).finish(options.json)


if __name__ == "__main__":
    main()
