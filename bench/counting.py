"""How long others wait while a prompt of 100 KB is counted: small requests beside long ones through one worker.

    python bench/counting.py PORT SECONDS      send long requests one after another, each with words of its own

Owns both clients. The long ones run in a process of their own; the small ones are asked at a fixed pace here.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import policies
from bench.chat_cost import edge, read_answer
from bench.chats import TURNS
from bench.processes import HERE
from bench.report import Row

LONG_BYTES = 100_000
PACE_S = 0.004
NUM_TURNS = 5
#: The route whose tokens are counted, and the one that is asked meanwhile.
COUNTED, BESIDE = "only-tokens", "bare"


def measure_counting(seconds: float) -> tuple[list[Row], dict[str, float | None]]:
    """Rows of waiting times, quiet and beside long prompts, in turn. count_100k_delay_ms: how much longer the slowest
    of a thousand waits beside them."""
    quiet: list[float] = []
    beside: list[float] = []
    with edge(pinned=False) as (port, _):
        long = subprocess.Popen([sys.executable, str(HERE / "counting.py"), str(port), str(2 * seconds + 60)])
        try:
            _wait_ms(port, min(1.0, seconds))  # it has begun
            for taken_ms, order in ((beside, signal.SIGCONT), (quiet, signal.SIGSTOP)) * NUM_TURNS:
                long.send_signal(order)
                _wait_ms(port, 0.1)  # what was under way is over, or has begun
                taken_ms += _wait_ms(port, seconds / NUM_TURNS)
            if long.poll() is not None:
                raise SystemExit("the long requests ended before the small ones: the figures mean nothing")
        finally:
            long.kill()
            long.wait()
    rows = [_row("nothing", quiet), _row(f"prompts of {LONG_BYTES // 1000} KB", beside)]
    return rows, {"count_100k_delay_ms": rows[1]["p999_ms"] - rows[0]["p999_ms"]}


def _row(what: str, taken_ms: list[float]) -> Row:
    ranked = sorted(taken_ms)
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
    return {"beside": what, **{name: ranked[int((len(ranked) - 1) * share)] for name, share in shares.items()}}


def _wait_ms(port: int, seconds: float) -> list[float]:
    """What small requests took, one at a time."""
    taken_ms: list[float] = []
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        for i in range(max(1, int(seconds / PACE_S))):
            request = policies.request(BESIDE, i, num_bytes=600)
            begun_at = time.perf_counter()
            connection.sendall(request)
            read_answer(connection, request)
            taken_ms.append((time.perf_counter() - begun_at) * 1e3)
            time.sleep(PACE_S)
    return taken_ms


def send_long(port: int, seconds: float) -> None:
    """Sends long requests for so many seconds, one after another."""
    end = time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        for conversation in count():
            request = policies.request(COUNTED, TURNS * conversation, num_bytes=LONG_BYTES)  # nothing is known of it
            connection.sendall(request)
            read_answer(connection, request)
            if time.monotonic() > end:
                return


if __name__ == "__main__":
    send_long(int(sys.argv[1]), float(sys.argv[2]))
