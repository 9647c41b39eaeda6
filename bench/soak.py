"""Ten minutes of mixed load through one worker: does its memory stay flat?

    python bench/soak.py [--quick] [--seconds N] [--json FILE]

Small and 64 KiB answers, uploads, event streams whose clients leave, TLS, upstreams that fail, clients that break off,
and a reload every few seconds, all at once and at a fixed pace. A line is fitted to the worker's resident memory by
least squares, once it has warmed up; what failed that should not have is counted.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import uvloop

from bench import mixed_load, peers
from bench.memory import fit, sampled
from bench.processes import HERE, cores, free_port, server
from bench.report import Report, Row, arguments, versions
from bench.tls import certificate

SAMPLE_S = 1.0
WARMUP_SHARE = 0.2  # of the time, at most two minutes


class Reloads:
    """Reloads the configuration again and again, each time with another timeout, so that something has changed."""

    def __init__(self, running: peers.Running, every_s: float) -> None:
        self.num_done = self.num_failed = 0
        self._file = Path(running.directory) / "headrace.yaml"
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Reloads:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        texts = [self._file.read_text(), self._file.read_text().replace("first_byte: 60s", "first_byte: 50s")]
        if texts[0] == texts[1]:
            raise SystemExit("the reloads would change nothing")
        while not self._over.wait(self._every_s):
            self._file.write_text(texts[(self.num_done + 1) % 2])
            command = [*peers.HEADRACE, "reload", "-c", str(self._file), "--wait"]
            done = subprocess.run(command, capture_output=True, check=False)
            self.num_done += 1
            self.num_failed += done.returncode != 0


def main() -> None:
    options = arguments(
        __doc__, lambda parser: parser.add_argument("--seconds", type=float, metavar="N", help="instead of ten minutes")
    )
    seconds = options.seconds or options.pick(600.0, 60.0, 3.0)
    reload_s, origin_port = options.pick(15.0, 5.0, 0.5), free_port()
    origin = [sys.executable, str(HERE / "mixed_origin.py"), str(origin_port)]
    with (
        certificate() as certificates,
        server(origin, port=origin_port, core=cores()[1]),
        peers.headrace([origin_port], cores()[0], peers.Setup(tls=certificates, plain_too=True)) as running,
        sampled(running.pid, SAMPLE_S) as samples,
        Reloads(running, reload_s) as reloads,
    ):
        counts = uvloop.run(mixed_load.run(running, certificates, seconds))

    warm_min = min(seconds * WARMUP_SHARE, 120.0) / 60
    warm = [(at, kib) for at, kib in samples if at >= warm_min]
    line = fit(warm)
    last = fit(warm[len(warm) // 2 :]) if len(warm) >= 6 else line
    rows: list[Row] = [{"load": name, "ended": c.ended, "failed": c.failed} for name, c in counts.items()]
    rows.append({"load": "reload", "ended": reloads.num_done, "failed": reloads.num_failed})
    Report(
        name="soak",
        method=(
            f"{seconds:g} s of mixed load at a fixed pace ({mixed_load.DESCRIPTION}), a reload {reload_s:g} s after "
            f"the last; one worker; its resident memory every {SAMPLE_S:g} s, without the first {warm_min * 60:.0f} s; "
            "slope by least squares, with its standard error, which takes samples as independent; last half: of those "
            "samples alone"
        ),
        versions=versions("headrace", "uvloop", "httptools"),
        rows=rows,
        ratios={
            "rss_slope_kib_per_min": line.slope,
            "rss_slope_error_kib_per_min": line.error,
            "rss_slope_last_half_kib_per_min": last.slope,
            "rss_first_mib": warm[0][1] / 1024,
            "rss_last_mib": warm[-1][1] / 1024,
            "soak_failures": float(sum(row["failed"] for row in rows)),
        },
        notes=[f"{name}: {problem}" for name, count in counts.items() for problem in count.problems],
    ).finish(options.json)


if __name__ == "__main__":
    main()
