"""A full engine's requests are refused before their body is sent: a real one, with a decoder that waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.load_page import LoadPage, page_path
from tests.fakes_engine import Engine, FakeDecoder, chat_model, engine, until
from tests.wire.harness import Edge, RawClient, edge, raw_upstream
from tests.wire.models import DONE, ROLE, STREAM, Recording, chat, chunks, text

WHOLE = STREAM + chunks(ROLE, text(b"hi"), DONE)

NUM_PLACES = 5  # four slots, and one that waits
POLICIES: list[dict[str, Any]] = [{}, {"idempotency": {}, "context_guard": {}}]


@asynccontextmanager
async def full_engine(tmp_path: Path) -> AsyncIterator[tuple[Engine, FakeDecoder, LoadPage]]:
    """An engine whose five places are taken until its decoder's gate is set."""
    decoder = FakeDecoder()
    async with engine(tmp_path, chat_model(decoder, max_queue=1)) as served:
        page = LoadPage(page_path(served.socket_path), served.serving.fleet.entries)
        page.open()
        decoder.gate.clear()
        taken = [asyncio.ensure_future(served.post()) for _ in range(NUM_PLACES)]
        entry = served.serving.fleet.entries["m"]
        await until(lambda: entry.model is not None and entry.model.admission.num_inside == NUM_PLACES)
        try:
            yield served, decoder, page
        finally:
            decoder.gate.set()
            assert [(await each).text for each in taken] == ["hi"] * NUM_PLACES
            page.close()


def to_engine(socket_path: str, policies: dict[str, Any]) -> dict[str, Any]:
    return {"engine_socket": socket_path, "routes": [{"to": "engine", "policies": policies}]}


async def asking(running: Edge, *fields: str) -> RawClient:
    """A client that has sent the head of a long request and nothing of its body."""
    client = await running.connect()
    lines = ("POST /v1/chat/completions HTTP/1.1", "Host: x", "Content-Length: 500000", *fields, "", "")
    await client.send("\r\n".join(lines).encode())
    return client


@pytest.mark.parametrize("policies", POLICIES)
@pytest.mark.parametrize("fields", [("Expect: 100-continue",), ()])
async def test_no_body_is_uploaded_to_a_full_engine(
    tmp_path: Path, policies: dict[str, Any], fields: tuple[str, ...]
) -> None:
    async with full_engine(tmp_path) as (served, _, _), edge(to_engine(served.socket_path, policies)) as running:
        client = await asking(running, "Idempotency-Key: a", *fields)
        answer = await client.answer()
        assert answer.status == 503, answer
        assert answer.raw.startswith(b"HTTP/1.1 503 ")  # and no 100 before it
        assert int(answer.get("retry-after") or 0) >= 1
        assert b'"code":"capacity_exceeded"' in answer.body
        assert served.serving.num_inside == NUM_PLACES


async def test_as_soon_as_there_is_a_place_the_body_is_asked_for(tmp_path: Path) -> None:
    async with full_engine(tmp_path) as (served, decoder, _), edge(to_engine(served.socket_path, {})) as running:
        assert (await (await asking(running, "Expect: 100-continue")).answer()).status == 503
        decoder.gate.set()
        entry = served.serving.fleet.entries["m"]
        await until(lambda: entry.model is not None and entry.model.admission.num_inside < NUM_PLACES)
        client = await asking(running, "Expect: 100-continue")
        assert (await client.answer()).status == 100


async def test_the_page_of_an_engine_that_has_hung_is_not_believed(tmp_path: Path) -> None:
    async with full_engine(tmp_path) as (served, _, page), edge(to_engine(served.socket_path, {})) as running:
        assert page._timer is not None
        page._timer.cancel()
        page.write(time.monotonic() - 60.0)
        client = await asking(running, "Expect: 100-continue")
        assert (await client.answer()).status == 100


async def test_a_full_engine_is_passed_by_where_another_upstream_serves_the_model(tmp_path: Path) -> None:
    async with full_engine(tmp_path) as (served, _, _), raw_upstream(Recording(WHOLE)) as other:
        config: dict[str, Any] = {
            "engine_socket": served.socket_path,
            "upstreams": {"other": {"servers": [f"http://127.0.0.1:{other.port}"]}},
            "model_routes": {
                "both": {"upstreams": [{"to": "engine", "model": "m", "priority": 1}, {"to": "other"}]},
                "own": {"upstreams": [{"to": "engine", "model": "m"}]},
            },
            "routes": [{"to": {"models": ["both", "own"]}}],
        }
        async with edge(config) as running:
            assert (await running.ask(chat("both"))).get("headrace-upstream") == "other"
            refused = await running.ask(chat("own"))
            assert (refused.status, refused.get("headrace-upstream")) == (503, "engine")
            assert b"no place for m now" in refused.body
            assert int(refused.get("retry-after") or 0) >= 1
            assert served.serving.num_inside == NUM_PLACES


async def test_the_less_urgent_go_to_the_other_upstream_while_the_engine_keeps_its_last_places(tmp_path: Path) -> None:
    decoder = FakeDecoder()
    async with engine(tmp_path, chat_model(decoder, max_queue=6)) as served, raw_upstream(Recording(WHOLE)) as other:
        page = LoadPage(page_path(served.socket_path), served.serving.fleet.entries)
        page.open()
        decoder.gate.clear()
        taken = [asyncio.ensure_future(served.post()) for _ in range(8)]
        entry = served.serving.fleet.entries["m"]
        await until(lambda: entry.model is not None and entry.model.admission.num_inside == 8)
        routes = {"both": {"upstreams": [{"to": "engine", "model": "m", "priority": 1}, {"to": "other"}]}}
        config: dict[str, Any] = {
            "engine_socket": served.socket_path,
            "upstreams": {"other": {"servers": [f"http://127.0.0.1:{other.port}"]}},
            "model_routes": routes,
            "routes": [{"to": {"models": ["both"]}, "policies": {"priority": {"default": "low"}}}],
        }
        async with edge(config) as running:
            assert (await running.ask(chat("both"))).get("headrace-upstream") == "other"
        config["routes"][0]["policies"] = {"priority": {"default": "high"}}
        async with edge(config) as running:
            high = asyncio.ensure_future(running.ask(chat("both", stream=False)))
            await until(lambda: entry.model is not None and entry.model.admission.num_inside == 9)
            decoder.gate.set()
            assert (await high).get("headrace-upstream") == "engine"
        await asyncio.gather(*taken)
        page.close()
