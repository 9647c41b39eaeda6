"""Pictures and texts on their way through a tensor model: fused, grouped, bounded, each row its own answer."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.device import Device
from engine.errors import Kind, RequestError
from engine.pool import Pool
from engine.settings import ModelSettings
from engine.tensor_facts import CLASSES, SCORES
from engine.tensors.load import load_tensor_model
from engine.tensors.model import TensorModel
from engine.tensors.raw_rows import Feeds, RawRow, infer_raw
from tests.engine.adapters.pictures import encode
from tests.engine.tiny_classifier import plain, scores_of, write_classifier


@dataclass
class Box:
    """A loaded tiny classifier on a running device."""

    model: TensorModel
    device: Device
    pool: Pool

    async def ask(self, *rows: RawRow, outputs: Sequence[str] = (SCORES, CLASSES)) -> list[Feeds]:
        places = [f"input[{index}]" for index in range(len(rows))]
        return await infer_raw(self.pool, self.device, self.model, rows, places, outputs=outputs)


@pytest.fixture(params=[{"image": True}, {"image": False, "text": True}, {"image": True, "text": True}])
async def box(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Box]:
    folder = write_classifier(tmp_path / "m", **request.param)
    model = load_tensor_model(folder, ModelSettings(name="m", path=str(folder.path)), threads=1)
    device = Device("cpu", [model.lane], asyncio.get_running_loop())
    device.start()
    box = Box(model, device, Pool(2))
    yield box
    box.pool.close()
    await device.stop(10)
    model.close()


IMAGES = pytest.mark.parametrize("box", [{"image": True}], indirect=True)
TEXTS = pytest.mark.parametrize("box", [{"image": False, "text": True}], indirect=True)
BOTH = pytest.mark.parametrize("box", [{"image": True, "text": True}], indirect=True)
COLORS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (200, 100, 0), (10, 20, 30)]


def picture(color: Any) -> bytes:
    return encode(plain(color), "PNG")


def check(answer: Feeds, wanted: Any) -> None:
    order = np.argsort(-wanted)
    np.testing.assert_allclose(answer[SCORES], wanted[order][None], atol=1e-3)
    if len(set(wanted.round(6).tolist())) == 3:
        np.testing.assert_array_equal(answer[CLASSES], order[None])


@IMAGES
async def test_each_picture_has_its_own_answer(box: Box) -> None:
    answers = await box.ask(*({"picture": picture(color)} for color in COLORS))
    for answer, color in zip(answers, COLORS, strict=True):
        check(answer, scores_of(color))


@TEXTS
async def test_texts_of_several_buckets(box: Box) -> None:
    answers = await box.ask(*({"ids": "a " * words} for words in (1, 5, 12, 2, 6)))
    for answer, words in zip(answers, (1, 5, 12, 2, 6), strict=True):
        check(answer, scores_of(num_tokens=words + 2))


@BOTH
async def test_pictures_with_texts(box: Box) -> None:
    rows = [{"picture": picture(color), "ids": "a " * words} for words, color in enumerate(COLORS, 1)]
    for answer, words, color in zip(await box.ask(*rows), range(1, 6), COLORS, strict=True):
        check(answer, scores_of(color, words + 2))


@BOTH
async def test_a_text_beside_a_tensor(box: Box) -> None:
    """The picture as the floats that the model itself takes."""
    floats = np.full((1, 3, 8, 8), 0.5, np.float32)
    tensors = {
        "picture": floats,
        **{name: box.model.adapters["ids"].prepare("a", "")[name] for name in ("ids", "mask")},
    }
    given = await box.model.infer(box.device, tensors)
    np.testing.assert_allclose(given["scores"], [[0.8, 0.5, 0.5]], atol=1e-6)


@IMAGES
async def test_tensors_and_pictures_at_once(box: Box) -> None:
    """They never share a run, whatever came together."""
    floats = np.array(COLORS, np.float32)[:, :, None, None] / 255 * np.ones((1, 1, 8, 8), np.float32)
    work = [box.model.infer(box.device, {"picture": row[None]}) for row in floats]
    pictures = [box.ask({"picture": picture(color)}, outputs=["scores"]) for color in COLORS]
    answers = await asyncio.gather(*(each for pair in zip(work, pictures, strict=True) for each in pair))
    for index, color in enumerate(COLORS):
        wanted = np.array([color], np.float32) / 255
        np.testing.assert_allclose(answers[2 * index]["scores"], wanted, atol=1e-6)
        np.testing.assert_allclose(answers[2 * index + 1][0]["scores"], wanted, atol=1e-3)


@IMAGES
async def test_O01_a_picture_that_cannot_be_decoded_fails_alone(box: Box) -> None:
    bad = [box.ask({"picture": b"no picture"})]
    good = [box.ask({"picture": picture(color)}) for color in COLORS * 4]
    answers = await asyncio.gather(*bad, *good, return_exceptions=True)
    assert isinstance(answers[0], RequestError)
    assert answers[0].message == "input[0] is neither JPEG nor PNG nor WebP"
    for answer, color in zip(answers[1:], COLORS * 4, strict=True):
        assert not isinstance(answer, BaseException)
        check(answer[0], scores_of(color))


@IMAGES
async def test_the_picture_at_fault_is_named(box: Box) -> None:
    with pytest.raises(RequestError, match=r"^input\[1\] is neither") as caught:
        await box.ask({"picture": picture((1, 2, 3))}, {"picture": b"GIF89a"}, {"picture": picture((1, 2, 3))})
    assert caught.value.kind is Kind.INVALID


@BOTH
async def test_a_row_that_lacks_something(box: Box) -> None:
    with pytest.raises(RequestError, match=r"^input\[0\] has nothing for the input 'ids'"):
        await box.ask({"picture": picture((1, 2, 3))})


@TEXTS
async def test_a_row_with_something_that_nothing_adapts(box: Box) -> None:
    with pytest.raises(RequestError, match=r"^input\[0\]: the model 'm' has no adapter for its input 'mask'"):
        await box.ask({"ids": "a", "mask": b"1"})
