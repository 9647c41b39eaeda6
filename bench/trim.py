"""What header trimming saves: the answer to a request with 8 KiB of cookies, with the trim policy off and on.

    python bench/trim.py [--quick] [--json FILE]

The route keeps one cookie, the session's. The answer is small, so that it is complete when its first byte is there.
"""

from __future__ import annotations

import http.client
import sys
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import loads, peers
from bench.processes import cores
from bench.report import Report, arguments, ratio, versions
from bench.rounds import Figures, column, interleave

COOKIE_BYTES = 8192
COOKIE = "session=0123456789abcdef" + "".join(f"; t{number:03}={'x' * 63}" for number in range(116))
TRIM = "trim: {cookies: {allow: [session]}}"
CONNECTIONS = 32


def measure(policies: str, cookie_bytes: int, origin_port: int, seconds: float) -> Figures:
    """One round. {first_byte_p50_ms, first_byte_p99_ms (one connection), requests_per_s, upstream_head_bytes}"""
    with peers.headrace([origin_port], cores()[0], peers.Setup(policies=policies)) as running:
        head_bytes = _arrived(running.port, COOKIE if cookie_bytes else "session=0123456789abcdef")
        single = loads.get(running.port, "/", connections=1, seconds=seconds, cookies=cookie_bytes)
        many = loads.get(running.port, "/", connections=CONNECTIONS, seconds=seconds, cookies=cookie_bytes)
    return {
        "first_byte_p50_ms": single["ms"]["p50"],
        "first_byte_p99_ms": single["ms"]["p99"],
        "requests_per_s": float(many["requests_per_s"]),
        "upstream_head_bytes": float(head_bytes),
    }


def _arrived(port: int, cookie: str) -> int:
    """How long the head is that the upstream gets of a request with these cookies."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/head", headers={"Cookie": cookie})
    num_bytes = int(connection.getresponse().read())
    connection.close()
    return num_bytes


def main() -> None:
    options = arguments(__doc__)
    num_rounds, seconds = options.rounds or options.pick(7, 3, 1), options.pick(5.0, 2.0, 0.1)
    with loads.origin() as origin_port:
        measures = {
            "trim off": partial(measure, "", COOKIE_BYTES, origin_port, seconds),
            "trim on": partial(measure, TRIM, COOKIE_BYTES, origin_port, seconds),
            "no such cookies": partial(measure, "", 0, origin_port, seconds),
        }
        rows = interleave(measures, num_rounds, label="route")

    first_ms, head_bytes = (
        column(rows, "first_byte_p50_ms", label="route"),
        column(rows, "upstream_head_bytes", label="route"),
    )
    if head_bytes["trim on"] > head_bytes["trim off"] - COOKIE_BYTES * 0.9:
        raise SystemExit("the policy has not taken the cookies out: the figures would mean nothing")
    Report(
        name="trim",
        method=(
            f"GET of {loads.SMALL_BYTES} bytes with {COOKIE_BYTES} bytes of cookies, of which the route keeps one "
            f"({TRIM}); first byte on one connection, requests per second on {CONNECTIONS}, to an upstream that does "
            f"nothing with heads; one worker on one core, load and origin on another; {num_rounds} interleaved rounds "
            f"of {seconds:g} s, medians"
        ),
        versions=versions("headrace", "uvloop", "httptools"),
        rows=rows,
        ratios={
            "first_byte_ms_untrimmed": first_ms["trim off"],
            "first_byte_ms_trimmed": first_ms["trim on"],
            "first_byte_trimmed_vs_untrimmed": ratio(first_ms["trim on"], first_ms["trim off"]),
            "upstream_bytes_saved": head_bytes["trim off"] - head_bytes["trim on"],
        },
    ).finish(options.json)


if __name__ == "__main__":
    main()
