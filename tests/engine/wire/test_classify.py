"""POST /v1/classify over the engine's own socket: every way to send pictures and texts, and every refusal."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from engine.device import Device
from engine.model_folder import ModelFolder
from engine.server import Server
from engine.serving import Serving
from engine.settings import ModelSettings
from engine.tensor_facts import CLASSES, SCORES, ClassifyFacts
from engine.tensors.load import load_tensor_model
from engine.wire.classify import render
from tests.engine.adapters.pictures import encode
from tests.engine.tiny_classifier import CLASSIFY, LABELS, plain, scores_of, write_classifier
from tests.fakes_engine import fleet_of

RED, DARK = (255, 0, 0), (0, 0, 120)


@dataclass
class Engine:
    """Three tiny models on one device: of pictures, of texts, of both."""

    client: aiohttp.ClientSession
    serving: Serving

    async def post(self, **request: Any) -> tuple[int, Any]:
        """Status and JSON."""
        path = request.pop("path", "/v1/classify")
        async with self.client.post(path, **request) as answer:
            return answer.status, await answer.json()

    async def ask(self, model: str, input_: Any, **fields: Any) -> tuple[int, Any]:
        return await self.post(json={"model": model, "input": input_, **fields})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[ModelFolder]:
    path = tmp_path_factory.mktemp("classifiers")
    top_2 = ClassifyFacts(**{**CLASSIFY.model_dump(), "top_k": 2, "labels": ()})
    return [
        write_classifier(path / "pictures"),
        write_classifier(path / "texts", image=False, text=True),
        write_classifier(path / "both", text=True),
        write_classifier(path / "unnamed", classify=top_2),
        write_classifier(path / "raw", classify=None),
        write_classifier(path / "bare", adapter=None, tokenizer=None),
    ]


@pytest.fixture
async def engine(folders: list[ModelFolder], tmp_path: Path) -> AsyncIterator[Engine]:
    models = [
        load_tensor_model(folder, ModelSettings(name=folder.name, path=str(folder.path)), threads=1)
        for folder in folders
    ]
    device = Device("cpu", [model.lane for model in models], asyncio.get_running_loop())
    serving = Serving(fleet_of(device, *models), device, hang_s=30, max_body_bytes=1 << 20)
    server = Server(serving, str(tmp_path / "e.sock"))
    await server.open()
    device.start()
    connector = aiohttp.UnixConnector(str(tmp_path / "e.sock"), limit=0)
    try:
        async with aiohttp.ClientSession("http://engine", connector=connector) as client:
            yield Engine(client, serving)
    finally:
        await server.close()
        await device.stop(10)
        serving.pool.close()
        for model in models:
            model.close()


def picture(color: Any, format_: str = "PNG") -> bytes:
    return encode(plain(color), format_)


def encoded(color: Any) -> str:
    return base64.b64encode(picture(color)).decode()


def classified(answer: Any, *wanted: Any) -> None:
    """Each item of the answer has the scores wanted, in falling order."""
    assert [item["index"] for item in answer["data"]] == list(range(len(wanted)))
    for item, scores in zip(answer["data"], wanted, strict=True):
        best = item["classes"]
        assert [each["score"] for each in best] == sorted((each["score"] for each in best), reverse=True)
        for each in best:
            assert each["score"] == pytest.approx(scores[each["class"]], abs=1e-3)
            assert each["label"] == LABELS[each["class"]]
        assert (item["label"], item["score"]) == (best[0]["label"], best[0]["score"])


async def test_a_picture_as_json(engine: Engine) -> None:
    status, answer = await engine.ask("pictures", encoded(RED))
    assert status == 200
    assert {key: value for key, value in answer.items() if key != "data"} == {"object": "list", "model": "pictures"}
    assert answer["data"][0]["object"] == "classification"
    assert answer["data"][0]["label"] == "red"
    classified(answer, scores_of(RED))


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
async def test_several_pictures_in_every_form(engine: Engine, prefix: str) -> None:
    items = [prefix + encoded(RED), {"image": prefix + encoded(DARK)}]
    status, answer = await engine.ask("pictures", items)
    assert status == 200
    classified(answer, scores_of(RED), scores_of(DARK))


@pytest.mark.parametrize("input_", ["a b", ["a b"], {"text": "a b"}, [{"text": "a b"}]])
async def test_a_text_as_json(engine: Engine, input_: Any) -> None:
    status, answer = await engine.ask("texts", input_)
    assert status == 200
    classified(answer, scores_of(num_tokens=4))


async def test_a_picture_with_a_text(engine: Engine) -> None:
    rows = [{"image": encoded(DARK), "text": "a b c"}, {"text": "a", "image": encoded(RED)}]
    status, answer = await engine.ask("both", rows)
    assert status == 200
    classified(answer, scores_of(DARK, 5), scores_of(RED, 3))


async def test_fewer_classes_and_ignored_fields(engine: Engine) -> None:
    request = {"model": "pictures", "input": encoded(RED), "top_k": 1, "user": "me"}
    async with engine.client.post("/v1/classify", json=request) as answer:
        assert answer.headers["headrace-ignored"] == "user"
        assert [len(item["classes"]) for item in (await answer.json())["data"]] == [1]


async def test_classes_without_labels(engine: Engine) -> None:
    status, answer = await engine.ask("unnamed", encoded(RED))
    assert status == 200
    assert next((each["class"], each["label"]) for each in answer["data"][0]["classes"]) == (0, None)
    assert len(answer["data"][0]["classes"]) == 2


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("media_type", ["image/png", "application/octet-stream"])
async def test_a_picture_as_the_whole_body(engine: Engine, format_: str, media_type: str) -> None:
    status, answer = await engine.post(
        path="/v1/classify?model=pictures&top_k=2", data=picture(RED, format_), headers={"Content-Type": media_type}
    )
    assert status == 200
    assert answer["data"][0]["label"] == "red"
    assert len(answer["data"][0]["classes"]) == 2


async def test_a_text_as_the_whole_body(engine: Engine) -> None:
    status, answer = await engine.post(
        path="/v1/classify?model=texts", data=b"a b", headers={"Content-Type": "text/plain; charset=utf-8"}
    )
    assert status == 200
    classified(answer, scores_of(num_tokens=4))


async def test_a_form(engine: Engine) -> None:
    form = aiohttp.FormData()
    form.add_field("model", "both")
    for color, text in ((RED, "a"), (DARK, "a b c")):
        form.add_field("image", picture(color), filename="x.png", content_type="image/png")
        form.add_field("text", text)
    form.add_field("top_k", "3")
    status, answer = await engine.post(data=form)
    assert status == 200
    classified(answer, scores_of(RED, 3), scores_of(DARK, 5))


async def test_many_at_once_have_their_own_answers(engine: Engine) -> None:
    colors = [(value, 255 - value, 10) for value in range(0, 250, 10)]
    answers = await asyncio.gather(*(engine.ask("pictures", encoded(color)) for color in colors))
    for (status, answer), color in zip(answers, colors, strict=True):
        assert status == 200
        classified(answer, scores_of(color))


@pytest.mark.parametrize(
    ("model", "input_", "fields", "param", "message"),
    [
        ("pictures", "", {}, "input", "input is empty"),
        ("pictures", [encoded(RED), "AAAA"], {}, "input", "input[1] is neither JPEG nor PNG nor WebP"),
        ("pictures", "https://example.org/x.png", {}, "input", "input is an address, and nothing is fetched"),
        ("pictures", [], {}, "input", "empty list"),
        ("pictures", ["x"] * 65, {}, "input", "65 items; at most 64"),
        ("pictures", None, {}, "input", "input must be a string"),
        ("pictures", [1], {}, "input", "input must be a string"),
        ("pictures", {}, {}, "input", "input must be a string"),
        ("pictures", {"image": 5}, {}, "input", "input must be a string"),
        ("pictures", {"img": "x"}, {}, "input", "has the field 'img'"),
        ("pictures", {"text": "a"}, {}, "input", "input lacks image; the model 'pictures' takes image"),
        ("texts", {"text": "a", "image": "x"}, {}, "input", "input has image; the model 'texts' takes text"),
        ("texts", ["a", ""], {}, "input", "input[1] is an empty string"),
        ("both", "a", {}, "input", "takes an image with a text"),
        ("both", [{"image": "x"}], {}, "input", "input[0] lacks text; the model 'both' takes image and text"),
        ("pictures", encoded(RED), {"top_k": 4}, "top_k", "at most 3 (classify.top_k in its model.yaml)"),
        ("pictures", encoded(RED), {"top_k": 0}, "top_k", "from 1 to 1000"),
        ("pictures", encoded(RED), {"top_k": True}, "top_k", "whole number"),
        ("pictures", encoded(RED), {"threshold": 1}, "threshold", "not supported"),
        ("raw", encoded(RED), {}, "model", "has no table classify"),
        ("bare", encoded(RED), {}, "model", "has no table adapter"),
        (None, encoded(RED), {}, "model", "you must say which model"),
    ],
)
async def test_what_is_refused_in_json(
    engine: Engine, model: Any, input_: Any, fields: Any, param: str, message: str
) -> None:
    status, answer = await engine.ask(model, input_, **fields)
    assert status == 400
    assert message in answer["error"]["message"]
    assert answer["error"]["param"] == param


@pytest.mark.parametrize(
    ("path", "type_", "body", "status", "message"),
    [
        ("?model=pictures", "application/xml", b"<x/>", 415, "multipart/form-data, an image or text/plain"),
        ("?model=pictures&top=1", "image/png", b"x", 400, "the query has 'top'"),
        ("?model=pictures&top_k=x", "image/png", b"x", 400, "top_k must be a whole number"),
        ("?model=pictures", "image/png", b"x", 400, "input is neither JPEG nor PNG nor WebP"),
        ("?model=pictures", "image/png", b"", 400, "input is empty"),
        ("?model=texts", "text/plain", b"\xff", 400, "input is not UTF-8 at byte 0"),
        ("?model=texts", "text/plain", b"a " * 20, 422, "input has 22 tokens, of which at most 16"),
        ("?model=both", "image/png", picture(RED), 400, "input lacks text"),
        ("", "image/png", picture(RED), 400, "you must say which model"),
        ("", "multipart/form-data", b"", 400, "needs a boundary"),
        ("", "application/json", b"{", 400, "not JSON"),
        ("?model=none", "image/png", picture(RED), 404, "no such model"),
    ],
)
async def test_what_is_refused_in_other_bodies(
    engine: Engine, path: str, type_: str, body: bytes, status: int, message: str
) -> None:
    given, answer = await engine.post(path=f"/v1/classify{path}", data=body, headers={"Content-Type": type_})
    assert given == status
    assert message in answer["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("model", "pictures")], "neither an image nor a text"),
        ([("model", "both"), ("image", "x"), ("image", "y"), ("text", "a")], "2 images and 1 texts"),
        ([("model", "pictures"), ("file", "x")], "has a part 'file'"),
        ([("model", "pictures"), ("top_k", "x"), ("image", "x")], "top_k must be"),
        ([("image", "x")] * 65, "65 images or texts"),
    ],
)
async def test_what_is_refused_in_a_form(engine: Engine, fields: list[tuple[str, str]], message: str) -> None:
    form = aiohttp.FormData(fields, default_to_multipart=True)
    status, answer = await engine.post(data=form)
    assert status == 400
    assert message in answer["error"]["message"]


async def test_a_model_of_another_kind_takes_no_classification(engine: Engine) -> None:
    status, answer = await engine.post(path="/v1/embeddings", json={"model": "pictures", "input": "a"})
    assert status == 400
    assert "tensor" in answer["error"]["message"]


async def test_what_was_read_is_counted(engine: Engine) -> None:
    for _ in range(2):
        await engine.ask("pictures", encoded(RED))
    async with engine.client.get("/metrics") as answer:
        page = (await answer.text()).splitlines()
    assert "headrace_engine_prepared_total 2.0" in page
    assert "headrace_engine_prepare_inside 0.0" in page


async def test_nothing_is_decoded_before_the_model_has_a_place(engine: Engine) -> None:
    """A full model refuses what is not even base64, and the pool is never asked."""
    model = engine.serving.fleet.entries["pictures"].model
    assert model is not None
    with contextlib.ExitStack() as stack:
        for _ in range(model.admission.running + model.admission.queue):
            stack.enter_context(engine.serving.place(model))
        status, answer = await engine.ask("pictures", "not base64")
    assert (status, engine.serving.pool.num_done) == (503, 0)
    assert "is full" in answer["error"]["message"]


def test_scores_that_are_no_numbers_are_no_answer() -> None:
    answer = {SCORES: np.array([[np.nan, 1.0]], np.float32), CLASSES: np.array([[0, 1]])}
    with pytest.raises(Exception, match=r"gave no finite scores for input\[0\]"):
        render("m", LABELS, [answer], 2)
