"""POST /v1/embeddings over the engine's own socket, with a tiny model and the real device."""

import asyncio
import base64
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from engine.batching.settings import BatchingSettings, LevelSettings
from engine.device import Device
from engine.embedder import load_embedder
from engine.encoder import Encoder
from engine.importers.bert import import_bert
from engine.model_folder import ModelFolder
from engine.server import Server
from engine.serving import Serving
from engine.settings import ModelSettings
from tests.engine.tiny_bert import SHAPE, embed_by_numpy, make_weights, write_bert_folder
from tests.fakes_engine import fleet_of


@dataclass
class Engine:
    """A served tiny model; its device runs from ``start`` on."""

    device: Device
    client: aiohttp.ClientSession

    async def post(self, body: Any, **headers: str) -> tuple[int, Any, aiohttp.typedefs.LooseHeaders]:
        """Status, JSON and headers of one request; bytes are sent as they are."""
        content = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.client.post(
            "/v1/embeddings", headers={"Content-Type": "application/json", **headers}, **content
        ) as answer:
            return answer.status, await answer.json(), answer.headers

    async def embed(self, text: Any, **fields: Any) -> tuple[int, Any]:
        """Status and JSON for one input."""
        status, answer, _ = await self.post({"model": "embed", "input": text, **fields})
        return status, answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    path = tmp_path_factory.mktemp("embeddings")
    return import_bert(write_bert_folder(path / "source"), path / "tiny")


@contextlib.asynccontextmanager
async def serve(
    folder: ModelFolder, socket: Path, *, started: bool = True, hang_s: float = 30, **settings: Any
) -> AsyncIterator[Engine]:
    embedder = load_embedder(folder, ModelSettings(name="embed", path=str(folder.path), **settings), threads=1)
    device = Device("cpu", [embedder.lane], asyncio.get_running_loop())
    server = Server(Serving(fleet_of(device, embedder), device, hang_s=hang_s, max_body_bytes=100_000), str(socket))
    await server.open()
    if started:
        device.start()
    connector = aiohttp.UnixConnector(str(socket), limit=0)
    try:
        async with aiohttp.ClientSession("http://engine", connector=connector) as client:
            yield Engine(device, client)
    finally:
        await server.close()
        await device.stop(10)


@pytest.fixture
async def engine(folder: ModelFolder, tmp_path: Path) -> AsyncIterator[Engine]:
    async with serve(folder, tmp_path / "e.sock") as engine:
        yield engine


def expected(*ids: int) -> Any:
    return pytest.approx(embed_by_numpy(SHAPE, make_weights(), [2, *ids, 3]), abs=1e-5)


async def test_answers_in_openai_shape(engine: Engine) -> None:
    status, answer, headers = await engine.post({"model": "embed", "input": ["hello", "a b"], "user": "someone"})
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert headers["headrace-ignored"] == "user"
    assert [item["index"] for item in answer["data"]] == [0, 1]
    assert answer["data"][0]["embedding"] == expected(11)
    assert answer["data"][1]["embedding"] == expected(7, 8)
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert (answer["object"], answer["model"]) == ("list", "embed")


async def test_M01_base64_equals_the_numbers_bit_for_bit(engine: Engine) -> None:
    _, plain = await engine.embed("hello", encoding_format=None)
    _, coded = await engine.embed("hello", encoding_format="base64")
    decoded = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    assert decoded.tolist() == plain["data"][0]["embedding"]


async def test_a_vector_is_cut_to_a_length_that_the_model_was_trained_for(tmp_path: Path) -> None:
    source = write_bert_folder(tmp_path / "source", matryoshka_dimensions=[16, 4])
    folder = import_bert(source, tmp_path / "tiny")
    whole = np.array(embed_by_numpy(SHAPE, make_weights(), [2, 11, 3]))
    async with serve(folder, tmp_path / "e.sock") as engine:
        status, answer = await engine.embed("hello", dimensions=4)
        assert status == 200
        wanted = whole[:4] / np.linalg.norm(whole[:4])
        np.testing.assert_allclose(answer["data"][0]["embedding"], wanted, atol=1e-5)
        status, answer = await engine.embed("hello", dimensions=8)
        assert (status, answer["error"]["param"]) == (400, "dimensions")


async def test_M02_token_arrays(engine: Engine) -> None:
    _, one = await engine.embed([7, 8])
    assert [item["embedding"] for item in one["data"]] == [expected(7, 8)]
    _, two = await engine.embed([[7, 8], [11]])
    assert [item["embedding"] for item in two["data"]] == [expected(7, 8), expected(11)]


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        ("", 400, "input[0] is an empty string"),
        ([""], 400, "input[0] is an empty string"),
        (["a", "", "b"], 400, "input[1] is an empty string"),
        (["a", "a " * 23], 422, "input[1] has 25 tokens"),
        ([[7], [7] * 23], 422, "input[1] has 25 tokens"),
        ([], 400, "input must be"),
        ([[]], 400, "input[0] is an empty array"),
        ([-1], 400, "the token -1"),
        ([[3], [10**9]], 400, "input[1] has the token 1000000000"),
        (["a", [1]], 400, "the items of input"),
        (["a", 1], 400, "the items of input"),
        ([1.5], 400, "the items of input"),
        ([True], 400, "the items of input"),
        (["a"] * 2049, 400, "at most 2048"),
        (None, 400, "input must be"),
        ({"a": 1}, 400, "input must be"),
    ],
)
async def test_M02_M04_refusals_name_input_and_the_next_request_succeeds(
    engine: Engine, text: object, status: int, says: str
) -> None:
    found, answer = await engine.embed(text)
    assert found == status
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["param"] == "input"
    assert says in answer["error"]["message"]
    assert answer["error"]["code"] == ("context_length_exceeded" if status == 422 else None)
    assert (await engine.embed("a"))[0] == 200


@pytest.mark.parametrize("text", [" ", "\0", "\n\n"])
async def test_M04_blank_text_is_text(engine: Engine, text: str) -> None:
    status, answer = await engine.embed(text)
    assert (status, answer["data"][0]["embedding"]) == (200, expected())


async def test_M05_many_at_once_equal_each_alone(engine: Engine) -> None:
    texts = ["hello", "a " * 22, "water wheel", "b"]
    alone = [(await engine.embed(text))[1]["data"][0]["embedding"] for text in texts]
    crowd = await asyncio.gather(*(engine.embed(texts[index % 4]) for index in range(100)))
    for index, (status, answer) in enumerate(crowd):
        assert status == 200
        assert answer["data"][0]["embedding"] == pytest.approx(alone[index % 4], abs=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        ({"model": "other", "input": "a"}, 404, "model", "model_not_found"),
        ({"input": "a"}, 400, "model", None),
        ({"model": "embed", "input": "a", "dimensions": 8}, 400, "dimensions", None),
        ({"model": "embed", "input": "a", "encoding_format": "int8"}, 400, "encoding_format", None),
        ({"model": "embed", "input": "a", "truncate": "END"}, 400, "truncate", "unsupported_parameter"),
        (b"{", 400, None, "invalid_json"),
        (b'{"model": "embed", "input": "\\ud800"}', 400, None, "invalid_json"),
        (b" " * 100_001, 413, None, "request_too_large"),
    ],
)
async def test_L17_every_error_has_openai_shape(
    engine: Engine, body: object, status: int, param: str | None, code: str | None
) -> None:
    found, answer, _ = await engine.post(body)
    assert (found, answer["error"]["param"], answer["error"]["code"]) == (status, param, code)


async def test_O04_overload_is_503_at_once_with_a_time_and_nobody_else_is_harmed(
    folder: ModelFolder, tmp_path: Path
) -> None:
    """4 requests that may run and 10 that may wait are held by the device, which does not run yet."""
    async with serve(folder, tmp_path / "e.sock", started=False, max_queue=10, batching=BatchingSettings(4)) as engine:
        answers = asyncio.as_completed([engine.post({"model": "embed", "input": "a"}) for _ in range(50)], timeout=60)
        for _ in range(36):
            status, answer, headers = await next(answers)
            assert (status, answer["error"]["code"]) == (503, "queue_full")
            assert int(headers["Retry-After"]) >= 1
        engine.device.start()
        assert [(await answer)[0] for answer in answers] == [200] * 14


async def test_O02_clients_that_leave_free_their_places(folder: ModelFolder, tmp_path: Path) -> None:
    async with serve(folder, tmp_path / "e.sock", started=False, max_queue=1, batching=BatchingSettings(1)) as engine:
        requests = [asyncio.create_task(engine.embed("a")) for _ in range(3)]
        refused, held = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result()[0] for task in refused] == [503]  # so the other two hold both places
        for task in held:
            task.cancel()
        await asyncio.wait(held)
        engine.device.start()
        status = 503
        while status == 503:  # the server sees the closed connections a moment later
            status, answer = await engine.embed("b")
        assert answer["data"][0]["embedding"] == expected(8)


async def test_O05_a_request_inside_a_run_that_hangs_is_told(
    folder: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.serving.WATCH_S", 0.02)
    opened = threading.Event()
    async with serve(folder, tmp_path / "e.sock", hang_s=0.05) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(Encoder, "run", lambda *_: opened.wait(30))
            status, answer, headers = await engine.post({"model": "embed", "input": "a"})
            opened.set()
            assert await engine.device.ping(10)
        assert (await engine.embed("a"))[0] == 200
    assert status == 503
    assert answer["error"]["code"] == "engine_unavailable"
    assert int(headers["Retry-After"]) >= 1


async def test_a_request_whose_deadline_passes_does_not_run(folder: ModelFolder, tmp_path: Path) -> None:
    async with serve(folder, tmp_path / "e.sock", started=False) as engine:
        body = {"model": "embed", "input": "a"}
        late = asyncio.create_task(engine.post(body, **{"headrace-deadline": "0.001ms"}))
        urgent = asyncio.create_task(engine.post(body, **{"headrace-priority": "high"}))
        await asyncio.wait([late, urgent], timeout=0.2)
        engine.device.start()
        status, answer, _ = await late
        assert (status, answer["error"]["code"]) == (408, "deadline_exceeded")
        assert (await urgent)[0] == 200
        status, answer, _ = await engine.post(body, **{"headrace-priority": "urgent"})
        assert (status, answer["error"]["param"]) == (400, "headrace-priority")


async def test_O04_a_level_has_places_of_its_own(folder: ModelFolder, tmp_path: Path) -> None:
    levels = LevelSettings(), LevelSettings(), LevelSettings(queue=1)
    batching = BatchingSettings(1, levels=levels)
    async with serve(folder, tmp_path / "e.sock", started=False, batching=batching) as engine:
        body = {"model": "embed", "input": "a"}
        low = [asyncio.create_task(engine.post(body, **{"headrace-priority": "low"})) for _ in range(3)]
        (refused,), _ = await asyncio.wait(low, return_when=asyncio.FIRST_COMPLETED)
        status, answer, headers = refused.result()
        assert (status, answer["error"]["code"], headers["Retry-After"]) == (503, "queue_full", "1")
        assert "no place for requests of low priority (1 running, 1 waiting); try again in 1 s" in str(answer)
        normal = asyncio.create_task(engine.post(body))
        engine.device.start()
        assert (await normal)[0] == 200
        assert sorted([(await task)[0] for task in low]) == [200, 200, 503]


async def test_the_metrics_count_runs_by_their_rows(engine: Engine) -> None:
    await engine.embed(["a", "b", "hello"])
    async with engine.client.get("/metrics") as answer:
        page = await answer.text()
    assert 'headrace_engine_batches_total{model="embed",rows="3"} 1.0' in page
    assert 'headrace_engine_batch_seconds_total{model="embed",rows="3"}' in page
    assert 'headrace_engine_batch_rows_total{model="embed"} 3.0' in page
    assert 'headrace_engine_batch_misfit_spikes{model="embed"} 0.0' in page
