"""A real classifier of pictures: fused, it says what it says after the usual pipeline."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from bench import unfused
from bench.pictures import photographs
from engine import model_folder
from engine.device import Device
from engine.pool import Pool
from engine.settings import ModelSettings
from engine.tensor_facts import CLASSES, SCORES
from engine.tensors.load import load_tensor_model
from engine.tensors.model import TensorModel
from engine.tensors.raw_rows import infer_raw

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def folder(pulled: Callable[[str], Path]) -> Path:
    return pulled("open-nsfw")


@pytest.fixture
async def model(folder: Path) -> AsyncIterator[tuple[TensorModel, Device]]:
    model = load_tensor_model(model_folder.read(folder), ModelSettings("nsfw", str(folder)), threads=0)
    device = Device("cpu", [model.lane], asyncio.get_running_loop())
    device.start()
    yield model, device
    await device.stop(60)
    model.close()


async def test_the_fused_graph_equals_the_unfused_pipeline(folder: Path, model: tuple[TensorModel, Device]) -> None:
    """On the same pixels to 1e-3, and on what Pillow makes of the same files nearly."""
    loaded, device = model
    files = photographs(3, width=1200, height=900)
    pool = Pool()
    rows = [{"input_0": file} for file in files]
    outputs = [SCORES, CLASSES, "4195"]
    answers = await infer_raw(pool, device, loaded, rows, ["", "", ""], outputs=outputs)
    pool.close()
    pixels = [loaded.adapters["input_0"].prepare(file, "")["input_0.image"] for file in files]
    floats = np.concatenate(pixels).astype(np.float32) - unfused.MEAN_BGR
    graph = unfused.session(folder, 0)
    same_pixels = graph.run(None, {"input_0": floats})[0]
    usual = graph.run(None, {"input_0": np.stack([unfused.preprocess(file) for file in files])})[0]
    for answer, same, other in zip(answers, same_pixels, usual, strict=True):
        np.testing.assert_allclose(answer["4195"][0], same, atol=1e-3)
        np.testing.assert_allclose(answer[SCORES][0], np.sort(same)[::-1], atol=1e-3)
        assert answer[CLASSES][0, 0] == other.argmax()
        np.testing.assert_allclose(answer["4195"][0], other, atol=0.02)
    given = await loaded.infer(device, {"input_0": floats})
    np.testing.assert_allclose(given["4195"], same_pixels, atol=1e-5)
