"""From a held body to the fingerprint of its request: long bodies are hashed off the event loop."""

from __future__ import annotations

import asyncio

from proxy.exchange import Exchange
from proxy.held_body import body_threads
from proxy.idempotency.key import fingerprint

HASHED_IN_THREAD_BYTES = 256 << 10  # 0.2 ms; less is done sooner than a thread is woken


async def read_fingerprint(x: Exchange) -> bytes:
    """The fingerprint of a request, whose body is read for it. Of one that cannot be read it says nothing: nobody is
    asked about it any more."""
    found = fingerprint_at_once(x)
    if found is not None:
        return found
    body = await x.body.read() if x.body is not None else b""
    if len(body) <= HASHED_IN_THREAD_BYTES:
        return _fingerprint(x, body)
    parts = (x.method, x.send_path, x.query, x.fields.get("Content-Type", ""), body)
    return await asyncio.get_running_loop().run_in_executor(body_threads(), fingerprint, *parts)


def fingerprint_at_once(x: Exchange) -> bytes | None:
    """The same, where nothing need be waited for; None: ``read_fingerprint`` must be."""
    body = x.body.read_at_once() if x.body is not None else b""
    return _fingerprint(x, body) if body is not None and len(body) <= HASHED_IN_THREAD_BYTES else None


def _fingerprint(x: Exchange, body: bytes) -> bytes:
    return fingerprint(x.method, x.send_path, x.query, x.fields.get("Content-Type", ""), body)
