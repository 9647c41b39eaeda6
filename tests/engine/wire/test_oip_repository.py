"""Loading and unloading over HTTP (cases O10 and N07): what clients are told, and what becomes of their requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.model import Model
from tests.fakes_engine import Engine, FakeDecoder, chat_model, engine, play, until

INDEX = "/v2/repository/index"
LOAD = "/v2/repository/models/m/load"
UNLOAD = "/v2/repository/models/m/unload"


@asynccontextmanager
async def generations(tmp_path: Path, *texts: str) -> AsyncIterator[tuple[Engine, list[FakeDecoder]]]:
    """An engine whose model answers the first text, and after each load the next one; "" cannot be loaded."""
    decoders = [FakeDecoder(script=play(list(text.encode()))) for text in texts]
    waiting = iter(list(zip(texts, decoders, strict=True))[1:])

    def load(kv_bytes: int) -> Model:
        text, decoder = next(waiting)
        if not text:
            raise EngineError("/srv/models/m/model.onnx: is damaged", permanent=True)
        return chat_model(decoder)

    async with engine(tmp_path, chat_model(decoders[0])) as served:
        served.serving.control = "clients"
        entry = served.serving.fleet.entries["m"]
        entry.source = type(entry.source)(entry.source.kind, load)
        entry.reread = lambda: entry.source
        yield served, decoders


async def test_O10_unloaded_while_8_run_and_20_wait_all_28_are_answered(tmp_path: Path) -> None:
    async with generations(tmp_path, "old", "new") as (served, [old, _]):
        old.gate.clear()
        old.entered.clear()
        inside = [asyncio.ensure_future(served.post()) for _ in range(28)]
        await until(old.entered.is_set)
        await until(lambda: served.serving.fleet.entries["m"].num_users == 28)
        assert (await served.send(UNLOAD, b"")).status == 200
        assert (await served.post()).status == 503
        row = (await served.send(INDEX, b"")).json[0]
        assert (row["state"], row["reason"]) == ("UNLOADING", "28 requests go on with the one before")
        old.gate.set()
        assert [(await each).text for each in inside] == ["old"] * 28
        refused = await served.post()
        assert (refused.status, refused.json["error"]["code"]) == (503, "engine_unavailable")
        await until(lambda: not served.serving.fleet.entries["m"].loaded)
        row = (await served.send(INDEX, b"{}")).json[0]
        assert row == {"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
        assert (await served.send(INDEX, b'{"ready": true}')).json == []
        assert (await served.send(LOAD, b"{}")).status == 200
        assert (await served.post()).text == "new"


async def test_O10_swapped_while_28_are_inside_they_end_on_the_old_one_and_others_get_the_new_one(
    tmp_path: Path,
) -> None:
    async with generations(tmp_path, "old", "new") as (served, [old, _]):
        old.gate.clear()
        old.entered.clear()
        inside = [asyncio.ensure_future(served.post()) for _ in range(28)]
        await until(lambda: served.serving.fleet.entries["m"].num_users == 28)
        await until(old.entered.is_set)
        old.gate.set()  # loading asks the device for the memory that its lanes may take, between two runs
        assert (await served.send(LOAD, b"")).status == 200
        later = [asyncio.ensure_future(served.post()) for _ in range(8)]
        assert {(await each).text for each in later} == {"new"}
        assert [(await each).text for each in inside] == ["old"] * 28
        await until(lambda: len(served.serving.fleet.entries["m"].loaded) == 1)


async def test_O10_load_unload_load_and_two_reloads_at_once(tmp_path: Path) -> None:
    async with generations(tmp_path, *map(str, range(5))) as (served, _):
        answers = await asyncio.gather(*[served.send(path, b"") for path in (LOAD, UNLOAD, LOAD)])
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert (await served.post()).text == "2"
        answers = await asyncio.gather(served.send(LOAD, b""), served.send(LOAD, b""))
        assert [answer.status for answer in answers] == [200, 200]
        assert (await served.post()).text == "4"


async def test_O10_a_failed_load_is_told_without_paths_and_the_old_one_serves(tmp_path: Path) -> None:
    async with generations(tmp_path, "old", "", "new") as (served, _):
        refused = await served.send(LOAD, b"")
        assert refused.status == 400
        assert b"could not be loaded; what served before still does" in refused.raw
        assert b"/srv" not in refused.raw
        assert (await served.post()).text == "old"
        row = (await served.send(INDEX, b"")).json[0]
        assert row["state"] == "READY"
        assert row["reason"] == "it could not be loaded; the engine's log says why, and the one before it serves"
        assert (await served.send(LOAD, b"")).status == 200
        assert (await served.post()).text == "new"


@pytest.mark.parametrize(
    ("path", "body", "status", "why"),
    [
        ("/v2/repository/models/x/load", b"", 404, b"there is no such model here; there is: m"),
        ("/v2/repository/models/x/unload", b"", 404, b"there is no such model here; there is: m"),
        ("/v2/repository/models/..%2Fm/load", b"", 404, b"there is no such model here; there is: m"),
        (LOAD, b'{"parameters": {"config": "{}"}}', 400, b"the parameter 'config' is not taken"),
        (LOAD, b'{"parameters": {"file:1/model.onnx": "AAAA"}}', 400, b"is not taken: a model is what its folder"),
        (LOAD, b'{"parameters": []}', 200, b""),
        (LOAD, b'{"parameters": 3}', 400, b"parameters must be an object"),
        (LOAD, b"[]", 400, b"must be a JSON object"),
        (UNLOAD, b'{"parameters": {"unload_dependents": true}}', 200, b""),
        (INDEX, b'{"ready": 1}', 400, b"ready must be true or false"),
    ],
)
async def test_what_an_order_may_say(tmp_path: Path, path: str, body: bytes, status: int, why: bytes) -> None:
    async with generations(tmp_path, "old", "new") as (served, _):
        answer = await served.send(path, body)
        assert answer.status == status
        assert why in answer.raw


async def test_orders_of_clients_are_forbidden_as_it_comes_and_the_index_is_read(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(FakeDecoder(script=play([*b"old"])))) as served:
        for path in (LOAD, UNLOAD):
            refused = await served.send(path, b"")
            assert refused.status == 403
            assert b"use `headrace model` on the box" in refused.raw
        assert (await served.send(INDEX, b"")).json[0]["state"] == "READY"
        assert (await served.post()).text == "old"
