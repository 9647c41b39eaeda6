"""What is never served: status and close at the client, and not one byte at the upstream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.wire.harness import OK, answering, app, edge, raw_upstream

VECTORS = Path(__file__).resolve().parent.parent / "vectors" / "wire" / "refused_requests.yaml"
CASES: list[dict[str, Any]] = yaml.safe_load(VECTORS.read_text())


@pytest.mark.parametrize("case", CASES, ids=[f"{case['id']} {case['name']}" for case in CASES])
async def test_is_refused_and_reaches_no_upstream(case: dict[str, Any]) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(case["raw"].encode("latin-1"))
        answer = await client.answer()
        assert answer.status == case["status"]
        assert answer.raw.startswith(b"HTTP/1.1 ")
        assert answer.get("connection") == "close"
        # The connection was told to be over: what follows on it is never answered.
        await client.send(b"ET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        rest, _ = await client.rest()
        assert rest == b""
        assert upstream.received == b""


@pytest.mark.parametrize("case", CASES, ids=[f"{case['id']} {case['name']}" for case in CASES])
async def test_is_refused_however_it_is_cut(case: dict[str, Any]) -> None:
    raw = case["raw"].encode("latin-1")
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        for at in range(0, len(raw), 7):
            await client.send(raw[at : at + 7])
        answer = await client.answer()
        assert answer.status == case["status"]
        assert b"smuggled" not in upstream.received
