"""Requests through one proxy worker on one core: Headrace, nginx, HAProxy and a plain aiohttp proxy in one run.

    python bench/proxy.py [--quick] [--json FILE]

Small ones on many connections and on one, answers of 64 KiB, and downloads of 50 MB. Also times the policy chain alone,
in this process, over the configuration that is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find this file
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import chain, loads, peers
from bench.processes import cores
from bench.report import Report, arguments, ratio, versions
from bench.rounds import Figures, column, interleave

CONNECTIONS = 32
MEDIUM_BYTES, MEDIUM_CONNECTIONS = 65536, 16
LARGE_BYTES, LARGE_CONNECTIONS = 50_000_000, 4


def measure(peer: peers.Peer, origin_port: int, seconds: float, large_bytes: int) -> Figures:
    """One round: starts the peer on the first core and gives it the four loads from the other, one after another."""
    with peer([origin_port], cores()[0], peers.Setup()) as running:
        small = loads.get(running.port, "/", connections=CONNECTIONS, seconds=seconds)
        single = loads.get(running.port, "/", connections=1, seconds=seconds)
        medium = loads.get(running.port, f"/{MEDIUM_BYTES}", connections=MEDIUM_CONNECTIONS, seconds=seconds)
        large = loads.get(running.port, f"/{large_bytes}", connections=LARGE_CONNECTIONS, seconds=seconds)
    return {
        "requests_per_s": float(small["requests_per_s"]),
        "p50_ms": small["ms"]["p50"],
        "p99_ms": small["ms"]["p99"],
        "one_p50_ms": single["ms"]["p50"],
        "one_p99_ms": single["ms"]["p99"],
        "get_64k_per_s": float(medium["requests_per_s"]),
        "download_mib_per_s": large["mib_per_s"],
    }


def added(of: str, to: str, p99_ms: Mapping[str, float]) -> float | None:
    """What one adds to the bare origin's p99, over what the other adds; None where that is nothing."""
    if to not in p99_ms or p99_ms[to] <= p99_ms["direct"]:
        return None
    return (p99_ms[of] - p99_ms["direct"]) / (p99_ms[to] - p99_ms["direct"])


def faster(speed: Mapping[str, float], name: str) -> float | None:
    """A peer's speed, the way that suits it better where it runs in two ways; None if it was not there."""
    return max((each for peer, each in speed.items() if peer.partition(",")[0] == name), default=None)


def main() -> None:
    options = arguments(__doc__)
    num_rounds, seconds = options.rounds or options.pick(7, 3, 1), options.pick(4.0, 0.8, 0.1)
    large_bytes = options.pick(LARGE_BYTES, LARGE_BYTES, 1_000_000)
    present, missing = peers.available("headrace", "nginx", "nginx, buffering", "haproxy", "plain", "direct")
    with loads.origin() as origin_port:
        measures = {name: partial(measure, peer, origin_port, seconds, large_bytes) for name, peer in present.items()}
        rows = interleave(measures, num_rounds)

    policies = chain.policy_names()
    small, one_p99_ms = column(rows, "requests_per_s"), column(rows, "one_p99_ms")
    medium, large = column(rows, "get_64k_per_s"), column(rows, "download_mib_per_s")
    ratios: dict[str, float | None] = {}
    for name in ("nginx", "haproxy", "plain"):
        ratios[f"small_get_vs_{name}"] = ratio(small["headrace"], faster(small, name))
        ratios[f"get_64k_vs_{name}"] = ratio(medium["headrace"], faster(medium, name))
        ratios[f"download_vs_{name}"] = ratio(large["headrace"], faster(large, name))
        ratios[f"added_p99_vs_{name}"] = added("headrace", name, one_p99_ms)
    Report(
        name="proxy",
        method=(
            f"GET of {loads.SMALL_BYTES} bytes on {CONNECTIONS} keep-alive connections and on one, of 64 KiB on "
            f"{MEDIUM_CONNECTIONS}, of {large_bytes / 1e6:g} MB on {LARGE_CONNECTIONS}; closed loop; each peer with "
            f"one worker on one core, load and origin on another; {num_rounds} interleaved rounds of {seconds:g} s, "
            f"medians. Headrace runs its policies ({', '.join(policies)}) and its breaker; all write access logs into "
            "files; nginx runs without buffering, as the others do, and with it: a ratio takes the faster; added_p99: "
            "p99 at one connection, less that of the bare origin; chain_us: admit, respond and settle of these "
            f"{len(policies)} policies alone, in microseconds a request"
        ),
        versions={**versions("headrace", "aiohttp", "uvloop", "httptools"), **peers.versions()},
        rows=rows,
        ratios={**ratios, "chain_us": chain.time_chain_us()},
        notes=missing,
    ).finish(options.json)


if __name__ == "__main__":
    main()
