"""Processor time of a proxy worker for one chat request, by the policies of its route.

Owns the order of measuring: in every round each route once, a few requests at a time on connections that are kept, so
that what drifts on a shared machine meets all routes alike. A figure is the median over rounds.
"""

from __future__ import annotations

import socket
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from bench import policies
from bench.peers import HEADRACE
from bench.processes import HERE, child_of, cores, cpu_s, free_port, server
from bench.report import Row

CONNECTIONS = 8
_numbers = count()  # of requests: none is ever sent again


@contextmanager
def edge(*, pinned: bool = True) -> Iterator[tuple[int, int]]:
    """(port, process of the worker) of an edge with the routes of ``policies`` before a chat upstream. pinned: each to
    a core; else to none, as a worker runs."""
    port, origin_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
        file = policies.write(Path(directory), port, origin_port)
        origin = [sys.executable, str(HERE / "chats.py"), str(origin_port)]
        with (
            server(origin, port=origin_port, core=cores()[1] if pinned else None),
            server([*HEADRACE, "serve", "-c", str(file)], port=port, core=cores()[0] if pinned else None) as process,
        ):
            yield port, child_of(process.pid, "proxy")


def measure_cost(num_rounds: int, num_requests: int) -> tuple[list[Row], dict[str, float | None]]:
    """Rows by policy, in microseconds: alone over the bare relay, and what all cost more than all but that one."""
    with edge() as (port, pid), ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(CONNECTIONS)
        ]
        measures: dict[str, Callable[[], float]] = {
            prefix: partial(_us, connections, pid, prefix, num_requests) for prefix in policies.routes()
        }
        for prefix in ("bare", "all"):
            measures[f"{prefix}, streamed"] = partial(_us, connections, pid, prefix, num_requests, stream=True)
        for measure in measures.values():
            measure()
        taken: dict[str, list[float]] = {name: [] for name in measures}
        for _ in range(num_rounds):
            for name, measure in measures.items():
                taken[name].append(measure())

    def over(name: str, other: str) -> float:
        return statistics.median(a - b for a, b in zip(taken[name], taken[other], strict=True))

    rows = [
        {"policy": name, "alone_us": over(f"only-{name}", "bare"), "in_all_us": over("all", f"without-{name}")}
        for name in policies.measured()
    ]
    return rows, {
        "chain_us_per_request": over("all", "bare"),
        "chain_us_per_streamed_request": over("all, streamed", "bare, streamed"),
        "bare_us_per_request": statistics.median(taken["bare"]),
    }


def _us(connections: list[socket.socket], pid: int, prefix: str, num_requests: int, *, stream: bool = False) -> float:
    """Microseconds of the worker for one request."""
    asked = [policies.request(prefix, next(_numbers), stream=stream) for _ in range(num_requests)]
    begun_s = cpu_s(pid)
    for i in range(0, num_requests, len(connections)):
        pairs = list(zip(connections, asked[i : i + len(connections)], strict=False))
        for connection, request in pairs:
            connection.sendall(request)
        for connection, request in pairs:
            read_answer(connection, request)
    return (cpu_s(pid) - begun_s) / num_requests * 1e6


def read_answer(connection: socket.socket, request: bytes) -> None:
    """One whole answer. Raises SystemExit if it is none of status 200."""
    data = b""
    while True:
        piece = connection.recv(65536)
        data += piece
        head, blank, body = data.partition(b"\r\n\r\n")
        if not piece:
            raise SystemExit(f"{_line(request)}: the connection was closed: {data[:200]!r}")
        if not blank:
            continue
        if not head.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(f"{_line(request)}: {_line(head)}, {body[:300]!r}: this means nothing")
        _, field, length = head.lower().partition(b"\r\ncontent-length: ")
        if body.endswith(b"\r\n0\r\n\r\n") if not field else len(body) == int(length.split(b"\r\n", 1)[0]):
            return


def _line(text: bytes) -> str:
    return text.split(b"\r\n", 1)[0].decode("latin-1")
