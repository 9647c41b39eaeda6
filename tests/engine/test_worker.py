"""The engine as a process has it: what cannot start says why, what started drains."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from engine import memory
from engine import worker as worker_module
from engine.entry import Entry, Source
from engine.llm.chat import ChatModel
from engine.residency import Need
from engine.settings import EngineSettings, ModelSettings
from engine.worker import EngineError, EngineWorker
from tests.fakes_engine import Engine, FakeDecoder, chat_model, engine, until


def settings(tmp_path: Path, path: str = "m") -> EngineSettings:
    return EngineSettings(str(tmp_path / "e.sock"), (ModelSettings(name="chat", path=str(tmp_path / path)),), threads=1)


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> FakeDecoder:
    """What every worker of the test loads instead of a model folder."""
    fake = FakeDecoder()

    def open_entry(settings: ModelSettings, threads: int, quiet: Callable[[], object]) -> Entry:
        return Entry(settings.name, Source("chat", lambda kv_bytes: chat_model(fake, name=settings.name)))

    monkeypatch.setattr(worker_module, "open_entry", open_entry)
    return fake


async def test_a_missing_model_folder_is_permanent_and_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        await EngineWorker(settings(tmp_path)).start(lambda what: None)
    assert caught.value.permanent
    assert str(tmp_path / "m" / "model.yaml") in str(caught.value)
    assert "'chat'" in str(caught.value)


async def test_a_corrupt_model_folder_is_permanent(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.yaml").write_text("format: 1\nname: x\nkind: chat\n")
    with pytest.raises(EngineError, match="import the model again") as caught:
        await EngineWorker(settings(tmp_path)).start(lambda what: None)
    assert caught.value.permanent


async def test_a_socket_that_cannot_be_bound_is_not_permanent(tmp_path: Path, decoder: FakeDecoder) -> None:
    elsewhere = EngineSettings(str(tmp_path / "none" / "e.sock"), settings(tmp_path).models)
    with pytest.raises(EngineError, match="cannot listen there") as caught:
        await EngineWorker(elsewhere).start(lambda what: None)
    assert not caught.value.permanent


async def test_a_box_that_does_not_say_how_much_memory_it_has_is_told(
    tmp_path: Path, decoder: FakeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody_says() -> int:
        raise MemoryError("neither this nor that says how much memory there is")

    monkeypatch.setattr(memory, "reachable_bytes", nobody_says)
    with pytest.raises(EngineError, match="neither this nor that") as caught:
        await EngineWorker(settings(tmp_path)).start(lambda what: None)
    assert caught.value.permanent


async def test_it_tells_its_progress_replaces_a_stale_socket_and_serves(tmp_path: Path, decoder: FakeDecoder) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "e.sock"))
    told: list[str] = []
    worker = EngineWorker(settings(tmp_path))
    await worker.start(told.append)
    assert told == ["loading chat", "serving"]
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "e.sock"))
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b'{"status":"ok","models":["chat"]}' in await reader.read()
    writer.close()
    assert worker.healthy(time.monotonic()) is None
    assert worker.statistics()["models"]["chat"]["slots"] == decoder.slots
    assert (tmp_path / "e.sock.load").stat().st_mode & 0o777 == 0o600
    assert await worker.drain(5)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("e.sock")]
    assert await worker.drain(5)


async def test_O05_a_runner_that_hangs_is_unhealthy_and_new_requests_are_503(
    tmp_path: Path, decoder: FakeDecoder
) -> None:
    async with engine(tmp_path, chat_model(decoder), hang_s=0.05) as served:
        decoder.gate.clear()
        decoder.entered.clear()
        stuck = asyncio.ensure_future(served.post())
        await until(decoder.entered.is_set)
        await until(lambda: served.serving.problem(time.monotonic()) is not None)
        health = await served.get("/health")
        late = await served.post()
        decoder.gate.set()
        assert (await stuck).text == "hi"
        assert (await served.get("/health")).status == 200
    assert health.status == late.status == 503
    assert "inside one run" in health.json["error"]["message"]
    assert int(late.headers["Retry-After"]) >= 1


@pytest.mark.parametrize("occupied", ["file", "engine"])
async def test_what_is_at_the_sockets_path_is_not_taken_away(
    tmp_path: Path, decoder: FakeDecoder, occupied: str
) -> None:
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as other:
        if occupied == "file":
            path.write_text("kept")
        else:
            other.bind(str(path))
            other.listen()
        with pytest.raises(EngineError, match="cannot listen there"):
            await EngineWorker(settings(tmp_path)).start(lambda what: None)
    assert path.exists()


async def test_drain_serves_what_comes_on_open_connections_and_ends_them(tmp_path: Path, decoder: FakeDecoder) -> None:
    async with engine(tmp_path, chat_model(decoder)) as served:
        assert (await served.get("/health")).status == 200
        draining, running = await _drain_while_running(served, decoder, 30)
        health = await served.get("/health")
        decoder.gate.set()
        assert (await running).text == "hi"
        assert await draining
    assert health.status == 503
    assert health.headers["Connection"] == "close"


async def test_drain_waits_for_a_request_that_still_uploads(tmp_path: Path, decoder: FakeDecoder) -> None:
    worker = EngineWorker(settings(tmp_path))
    await worker.start(lambda what: None)
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "e.sock"))
    body = b'{"model":"chat","messages":[{"role":"user","content":"hi"}]}'
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
    writer.write(body[:9])
    await until(lambda: worker.statistics()["requests"] == 1)
    draining = asyncio.ensure_future(worker.drain(30))
    await until(lambda: not (tmp_path / "e.sock").exists())
    writer.write(body[9:])
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"\r\nConnection: close\r\n" in answer
    assert b"\r\nServer:" not in answer
    assert await draining
    writer.close()


async def test_drain_ends_at_its_deadline(tmp_path: Path, decoder: FakeDecoder) -> None:
    async with engine(tmp_path, chat_model(decoder)) as served:
        draining, running = await _drain_while_running(served, decoder, 0.05)
        assert not await draining
        decoder.gate.set()
        await running


async def _drain_while_running(
    served: Engine, decoder: FakeDecoder, deadline_s: float
) -> tuple[asyncio.Task[bool], asyncio.Task[object]]:
    decoder.gate.clear()
    decoder.entered.clear()
    running = asyncio.ensure_future(served.post())
    await until(decoder.entered.is_set)
    draining = asyncio.ensure_future(served.serving.drain(deadline_s))
    await until(lambda: served.serving.draining)
    return draining, running


async def test_a_model_that_does_not_fit_beside_the_other_is_listed_and_loaded_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_entry(settings: ModelSettings, threads: int, quiet: Callable[[], object]) -> Entry:
        def load(kv_bytes: int) -> ChatModel:
            return chat_model(FakeDecoder(), name=settings.name)

        return Entry(settings.name, Source("chat", load, Need(60)))

    monkeypatch.setattr(worker_module, "open_entry", open_entry)
    monkeypatch.setattr(memory, "reachable_bytes", lambda: 200)
    models = (ModelSettings(name="m", path=""), ModelSettings(name="other", path=""))
    worker = EngineWorker(EngineSettings(str(tmp_path / "e.sock"), models, memory=0.5))
    told: list[str] = []
    await worker.start(told.append)
    assert told[1] == "other does not fit beside the others and is loaded when it is asked for"
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "e.sock"))) as session:
        assert worker._serving is not None
        served = Engine(worker._serving, session, "")
        assert [model["id"] for model in (await served.get("/v1/models")).json["data"]] == ["m", "other"]
        assert [(await served.post(model=name)).text for name in ("m", "other", "m")] == ["hi"] * 3
        metrics = (await served.get("/metrics")).raw.decode()
    for line in (
        'loaded{model="m"} 1.0',
        'loaded{model="other"} 0.0',
        'loads_total{model="m"} 2.0',
        'unloads_total{model="m"} 1.0',
        'unloads_total{model="other"} 1.0',
    ):
        assert f"headrace_engine_{line}" in metrics
    assert await worker.drain(5)


async def test_metrics_count_tokens_by_model(tmp_path: Path, decoder: FakeDecoder) -> None:
    async with engine(tmp_path, chat_model(decoder)) as served:
        await served.post()
        metrics = (await served.get("/metrics")).raw.decode()
    assert 'headrace_engine_output_tokens_total{model="m"} 3.0' in metrics
    assert 'headrace_engine_slots{model="m"} 4.0' in metrics
    assert "headrace_engine_steps_total" in metrics
