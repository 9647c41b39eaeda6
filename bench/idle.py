"""Memory of one proxy worker per connection that does nothing, and per connection whose other end is stuck.

    python bench/idle.py [--quick] [--json FILE]

Headrace, nginx and HAProxy. Idle: kept alive after one request, plain and over TLS. Stuck: a client that reads nothing
of a large answer, and one that uploads to an upstream that reads nothing; what these cost above an idle one is stated.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import held, loads, peers
from bench.memory import settled_kib
from bench.processes import cores
from bench.report import Report, Row, arguments, versions
from bench.rounds import Figures, column, interleave
from bench.tls import certificate

ANSWER_BYTES = 8 << 20  # more than the kernel takes, and for all of them less than it lets sockets have in all
KINDS = ("idle", "idle_tls", "slow_reader", "slow_reader_tls", "slow_upload")


def measure(peer: peers.Peer, origin_port: int, certificates: str, kind: str, num: int, quiet_s: float) -> Figures:
    """One round on a fresh process. {kib (per connection)}"""
    tls = certificates if kind.endswith("_tls") else None
    with peer([origin_port], cores()[0], peers.Setup(tls=tls)) as running:
        hold = partial(held.idle, running.port, certificates=tls)
        with hold(max(1, num // 10)):  # what the first connections cost once: code, arenas, logs
            pass
        before = settled_kib(running.pid, quiet_s)
        if kind == "slow_upload":
            hold = partial(held.uploading, running.port, quiet_s=quiet_s)
        elif kind.startswith("slow_reader"):
            hold = partial(held.unread, running.port, f"/{ANSWER_BYTES}", quiet_s=quiet_s, certificates=tls)
        with hold(num):
            return {"kib": (settled_kib(running.pid, quiet_s) - before) / num}


def main() -> None:
    options = arguments(__doc__)
    num_rounds, num_idle = options.rounds or options.pick(5, 1, 1), options.pick(4000, 1500, 40)
    num_slow = options.pick(100, 60, 5)
    quiet_s = options.pick(1.0, 1.0, 0.1)
    present, missing = peers.available("headrace", "nginx", "haproxy")
    rows: list[Row] = [{"peer": name} for name in present]
    with loads.origin() as origin_port, certificate() as certificates:
        for kind in KINDS:
            num = num_idle if kind.startswith("idle") else num_slow
            measures = {
                name: partial(measure, peer, origin_port, certificates, kind, num, quiet_s)
                for name, peer in present.items()
            }
            kib = column(interleave(measures, num_rounds), "kib")
            for row in rows:
                above = row["idle_tls" if kind.endswith("_tls") else "idle"] if kind.startswith("slow") else 0.0
                row[kind] = kib[row["peer"]] - above

    Report(
        name="idle",
        method=(
            f"growth of the worker's resident memory, KiB a connection, over {num_idle} idle and {num_slow} stuck ones "
            f"opened after a tenth as many idle ones had come and gone; answers of {ANSWER_BYTES >> 20} MiB and "
            "endless uploads, held until nothing moves; stuck: above an idle one; socket buffers do not count; "
            f"{num_rounds} interleaved rounds on fresh processes, medians"
        ),
        versions={**versions("headrace", "uvloop", "httptools"), **peers.versions()},
        rows=rows,
        ratios={
            f"{kind}_kib{'' if row['peer'] == 'headrace' else '_' + row['peer']}": row[kind]
            for row in rows
            for kind in KINDS
        },
        notes=missing,
    ).finish(options.json)


if __name__ == "__main__":
    main()
