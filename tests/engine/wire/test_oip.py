"""What /v2 tells of the server and its models, and whether it is true."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from engine.errors import EngineError
from engine.importers.bert import import_bert
from engine.model import Model
from engine.model_folder import ModelFolder
from engine.serving import Serving
from tests.engine.tiny_bert import SHAPE, embed_by_numpy, make_weights, write_bert_folder
from tests.engine.tiny_tensors import linear, write_folder
from tests.engine.wire.oip_box import Box, serve, tensor
from tests.fakes_engine import FakeDecoder, chat_model, engine, until

ROW = {"inputs": [tensor(np.ones((1, 4), np.float32))]}


@pytest.fixture
def embedding(tmp_path: Path) -> ModelFolder:
    return import_bert(write_bert_folder(tmp_path / "source"), tmp_path / "embed", name="embed")


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    folders = write_folder(tmp_path / "m", linear()), write_folder(tmp_path / "other", linear(), version="v3")
    async with serve(tmp_path, *folders, max_batch=2) as running:
        yield running


def serving_of(box: Box) -> Serving:
    assert box.worker._serving is not None
    return box.worker._serving


async def ready(box: Box) -> tuple[int, int, int]:
    """Status of the server's readiness, of m's, and of a request to m."""
    answers = (
        await box.get("/v2/health/ready"),
        await box.get("/v2/models/m/ready"),
        await box.infer(ROW),
    )
    assert (await box.get("/v2/health/live")).status == 200
    assert (await box.get("/v2/models/other/ready")).status in (200, answers[0].status)
    return answers[0].status, answers[1].status, answers[2].status


async def test_n07_metadata_shows_the_axis_of_the_batch(box: Box) -> None:
    assert (await box.get("/v2/models/m")).json == {
        "name": "m",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [-1, 3]},
            {"name": "sum", "datatype": "FP32", "shape": [-1]},
        ],
    }
    assert (await box.get("/v2/models/other/versions/v3")).json["versions"] == ["v3"]
    assert (await box.infer(ROW, None, "other")).json["model_version"] == "v3"
    missing = await box.get("/v2/models/none")
    assert (missing.status, missing.error) == (404, "there is no such model here; there is: m, other")
    assert (await box.get("/v2/models/none/ready")).status == 404


async def test_the_server_names_itself_and_what_it_can(box: Box) -> None:
    told = (await box.get("/v2")).json
    assert told["name"] == "headrace"
    assert "binary_tensor_data" in told["extensions"]


async def test_statistics_count_requests_rows_and_runs_by_their_size(box: Box) -> None:
    before = (await box.get("/v2/models/m/stats")).json["model_stats"]
    assert (before[0]["inference_count"], before[0]["last_inference"], before[0]["batch_stats"]) == (0, 0, [])
    two = {"inputs": [tensor(np.ones((2, 4), np.float32))]}
    for request in (ROW, two, two):
        assert (await box.infer(request)).status == 200
    assert (await box.infer({**ROW, "parameters": {"timeout": 1}})).status == 408
    (told,) = (await box.get("/v2/models/m/versions/1/stats")).json["model_stats"]
    assert (told["name"], told["version"], told["inference_count"], told["execution_count"]) == ("m", "1", 5, 3)
    assert abs(told["last_inference"] / 1000 - time.time()) < 600
    sums = told["inference_stats"]
    assert (sums["success"]["count"], sums["fail"]["count"], sums["compute_infer"]["count"]) == (3, 1, 3)
    assert sums["success"]["ns"] >= sums["compute_infer"]["ns"] > 0
    assert sums["success"]["ns"] >= sums["queue"]["ns"] > 0
    assert [(each["batch_size"], each["compute_infer"]["count"]) for each in told["batch_stats"]] == [(1, 1), (2, 2)]
    everything = (await box.get("/v2/models/stats")).json["model_stats"]
    assert [(each["name"], each["execution_count"]) for each in everything] == [("m", 3), ("other", 0)]


async def test_n07_ready_is_what_requests_find(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = serving_of(box).fleet
    entry = fleet.entries["m"]
    assert await ready(box) == (200, 200, 200)
    await fleet.unload(entry)
    assert await ready(box) == (503, 503, 503)
    refused = await box.get("/v2/health/ready")
    assert refused.error == "these models cannot serve now: m"
    assert refused.headers["retry-after"] == "1"
    await fleet.load(entry)
    assert await ready(box) == (200, 200, 200)


async def test_n07_a_model_that_is_being_replaced_is_ready_and_one_that_is_being_loaded_is_not(box: Box) -> None:
    fleet = serving_of(box).fleet
    entry = fleet.entries["m"]
    entered, gate = threading.Event(), threading.Event()
    real = entry.source

    def load(kv_bytes: int) -> Model:
        entered.set()
        assert gate.wait(60)
        return real.load(kv_bytes)

    for first, expected in ((None, (200, 200)), (fleet.unload, (503, 503))):
        if first is not None:
            await first(entry)
        entered.clear()
        gate.clear()
        loading = asyncio.create_task(fleet.load(entry, lambda: dataclasses.replace(real, load=load)))
        assert await asyncio.to_thread(entered.wait, 60)
        found = (await box.get("/v2/health/ready")).status, (await box.get("/v2/models/m/ready")).status
        gate.set()
        await loading
        assert found == expected
        assert await ready(box) == (200, 200, 200)


async def test_n07_a_model_that_could_not_be_loaded_is_not_ready(box: Box, tmp_path: Path) -> None:
    fleet = serving_of(box).fleet
    entry = fleet.entries["m"]
    await fleet.unload(entry)
    manifest = tmp_path / "m" / "model.yaml"
    content = manifest.read_bytes()
    manifest.write_bytes(b"nothing")
    with pytest.raises(EngineError):
        await fleet.load(entry)
    assert await ready(box) == (503, 503, 503)
    manifest.write_bytes(content)
    await fleet.load(entry)
    assert await ready(box) == (200, 200, 200)


async def test_n07_an_engine_that_drains_is_live_and_not_ready(box: Box) -> None:
    serving_of(box).draining = True
    assert await ready(box) == (503, 503, 200)


async def test_a_model_that_embeds_takes_text_and_gives_vectors(embedding: ModelFolder, tmp_path: Path) -> None:
    async with serve(tmp_path, embedding) as box:
        told = (await box.get("/v2/models/embed")).json
        assert told["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        (output,) = told["outputs"]
        assert (output["name"], output["datatype"]) == ("embedding", "FP32")
        asked = {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["hello", "a b"]}
        answer = await box.infer({"inputs": [asked]}, None, "embed")
        weights = make_weights()
        wanted = [embed_by_numpy(SHAPE, weights, [2, 11, 3]), embed_by_numpy(SHAPE, weights, [2, 7, 8, 3])]
        np.testing.assert_allclose(answer.array("embedding"), wanted, atol=1e-5)
        assert output["shape"] == [-1, answer.array("embedding").shape[1]]
        wrong = await box.infer({"inputs": [{**asked, "shape": [2, 1]}]}, None, "embed")
        assert (wrong.status, "'text' is of shape [2, 1]" in wrong.error) == (400, True)
        late = await box.infer({"inputs": [asked], "parameters": {"timeout": 1}}, None, "embed")
        assert (late.status, "deadline" in late.error) == (408, True)
        many = await box.infer({"inputs": [{**asked, "shape": [2049], "data": ["a"] * 2049}]}, None, "embed")
        assert (many.status, "at most 2048" in many.error) == (400, True)
        assert (await box.infer(ROW, None, "embed")).error == "the model has no input 'x'; it has: text"


async def test_a_model_that_chats_is_shown_and_takes_no_tensors(tmp_path: Path) -> None:
    async with engine(tmp_path, chat_model(FakeDecoder())) as served:
        told = (await served.get("/v2/models/m")).json
        assert (told["platform"], told["inputs"]) == ("headrace_chat", [])
        assert (await served.get("/v2/models/stats")).json["model_stats"][0]["execution_count"] == 0
        assert (await served.get("/v2/models/m/ready")).status == 200
        answer = await served.send("/v2/models/m/infer", b"{}")
        assert (answer.status, "POST /v1/chat/completions" in answer.json["error"]) == (400, True)


async def test_o04_overload_is_503_at_once_in_the_protocols_form(tmp_path: Path) -> None:
    """Requests that wait for the device, which one run holds, take all the places there are."""
    async with serve(tmp_path, write_folder(tmp_path / "m", linear()), max_batch=4, max_queue=4) as box:
        entered, gate = threading.Event(), threading.Event()

        def hold() -> None:
            entered.set()
            assert gate.wait(60)

        held = asyncio.create_task(serving_of(box).device.do(hold, 60))
        assert await asyncio.to_thread(entered.wait, 60)
        answers = asyncio.as_completed([box.infer(ROW) for _ in range(20)], timeout=60)
        for _ in range(12):
            answer = await next(answers)
            assert answer.status == 503
            assert "the model 'm' is full" in answer.error
            assert int(answer.headers["retry-after"]) >= 1
        gate.set()
        await held
        assert [(await answer).status for answer in answers] == [200] * 8


async def test_o02_a_client_that_leaves_gives_back_its_place_and_its_body(box: Box) -> None:
    serving = serving_of(box)
    model = serving.fleet.entries["m"].model
    assert model is not None
    entered, gate = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert gate.wait(60)

    held = asyncio.create_task(serving.device.do(hold, 60))
    assert await asyncio.to_thread(entered.wait, 60)
    leaving, *staying = [asyncio.create_task(box.infer(ROW)) for _ in range(3)]
    await until(lambda: model.admission.num_inside == 3)
    whole = serving.num_body_bytes
    leaving.cancel()
    await until(lambda: model.admission.num_inside == 2)
    assert serving.num_body_bytes == whole * 2 // 3
    gate.set()
    await held
    assert [(await answer).status for answer in staying] == [200, 200]
    assert serving.num_body_bytes == 0
