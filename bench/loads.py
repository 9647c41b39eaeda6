"""The C instruments as functions: origins as contexts, loads as figures. Load and origin share one core.

Owns their command lines; knows nothing of the proxies between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.processes import cores, free_port, instrument, run_json, server
from bench.rounds import Figures

SMALL_BYTES = 128
WARMUP_S = 0.5


@contextmanager
def origin(num_bytes: int = SMALL_BYTES) -> Iterator[int]:
    """An upstream that answers /N with N bytes and / with ``num_bytes``. Yields its port."""
    port = free_port()
    with server([instrument("getload"), "origin", str(port), str(num_bytes)], port=port, core=cores()[1]):
        yield port


def get(port: int, path: str, *, connections: int, seconds: float, cookies: int = 0) -> dict[str, Any]:
    """Keeps ``connections`` requests in flight. {requests, requests_per_s, mib_per_s, ms: {p50, p99, max}, ...}; raises
    SystemExit if any failed or none ended."""
    warmup_s = min(WARMUP_S, seconds / 4)
    arguments = [str(port), path, str(connections), str(warmup_s), str(seconds), str(cookies)]
    figures = run_json([instrument("getload"), "client", *arguments], core=cores()[1])
    if figures["errors"] or not figures["requests"]:
        raise SystemExit(f"GET {path}: {figures['requests']} answers, {figures['errors']} errors: they mean nothing")
    return figures


@contextmanager
def event_origin(num_events: int, events_per_s: int, payload_bytes: int) -> Iterator[int]:
    """An upstream that answers with a stream of events. Yields its port."""
    port = free_port()
    arguments = [str(port), str(num_events), str(1_000_000 // events_per_s), str(payload_bytes)]
    with server([instrument("sseload"), "origin", *arguments], port=port, core=cores()[1]):
        yield port


def read_events(port: int, *, streams: int, num_events: int, late_ms: int, tls: bool) -> Figures:
    """Reads ``streams`` streams at once. {stall_free, complete (streams), p50_ms, p99_ms, max_ms (added per event)}."""
    arguments = [str(port), "/", str(streams), str(num_events), str(late_ms), *(["tls"] if tls else [])]
    figures = run_json([instrument("sseload", tls=tls), "client", *arguments], core=cores()[1])
    added = {f"{name}_ms": added_ms for name, added_ms in figures["added_ms"].items()}
    return {"stall_free": figures["stall_free"], "complete": figures["complete"], **added}
