"""The instrument ``postload`` as a function: requests with bodies, in a closed loop.

Owns its command line; knows nothing of what is asked. The client shares its cores with what it asks: it takes about a
hundredth of one per thousand small answers.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.processes import instrument

WARMUP_S = 0.5


def render(path: str, body: bytes, *fields: str, content_type: str = "application/json") -> bytes:
    """A whole POST. fields: more of its head, as ``Name: value``."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        *fields,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def post(where: int | str, requests: Sequence[bytes], *, connections: int, seconds: float) -> dict[str, Any]:
    """Keeps ``connections`` of ``requests`` in flight, sent in turn to a port of 127.0.0.1 or a unix socket.

    {requests, requests_per_s, mib_per_s (of answers), ms: {p50, p99, max}, ...}; raises SystemExit if any failed or
    none ended.
    """
    warmup_s = min(WARMUP_S, seconds / 4)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        files = [Path(directory) / str(number) for number in range(len(requests))]
        for file, request in zip(files, requests, strict=True):
            file.write_bytes(request)
        arguments = [str(where), str(connections), str(warmup_s), str(seconds), *map(str, files)]
        done = subprocess.run([instrument("postload"), *arguments], check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    if figures["errors"] or not figures["requests"]:
        raise SystemExit(
            f"{requests[0].partition(b' HTTP')[0].decode()}: {figures['requests']} answers, {figures['errors']} errors"
            f" ({figures['complaint'] or 'no head came'}): they mean nothing"
        )
    return figures
