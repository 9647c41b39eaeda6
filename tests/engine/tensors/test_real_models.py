"""Real models of the catalogue: what they answer, and that company changes no answer."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.joined import join
from engine import model_folder
from engine.batching.pace import Pace
from engine.batching.settings import BatchingSettings
from engine.device import Device
from engine.encoder import load_encoder
from engine.importers.onnx_import import import_onnx
from engine.settings import ModelSettings
from engine.tensors.load import load_tensor_model
from engine.tensors.model import TensorModel
from tests.fakes_engine import until

pytestmark = pytest.mark.model

PYTHON = Path(__file__).read_bytes()
Arrays = Mapping[str, NDArray[np.generic]]


class UnmovedPace(Pace):
    """Knows the prior ratio, whatever runs take."""

    def observe(self, rows: int, size: int, elapsed_s: float) -> None:
        pass


async def answers(folder: Path, requests: list[Arrays], *, max_batch: int) -> tuple[TensorModel, list[Arrays]]:
    """What the model answers to all of them at once: all wait before the first runs, and what runs take on this box
    does not decide which of them run together."""
    settings = ModelSettings(folder.name, str(folder), batching=BatchingSettings(max_batch=max_batch))
    model = load_tensor_model(model_folder.read(folder), settings, threads=0)
    model.lane.pace = model.lane.batcher._pace = UnmovedPace(model.lane.pace.run_cost)
    model.lane.width = 1  # else they may share the cores and not a run
    device = Device("cpu", [model.lane], asyncio.get_running_loop())
    waiting = [asyncio.ensure_future(model.infer(device, request)) for request in requests]
    await until(lambda: device._inbox.qsize() == len(requests))
    device.start()
    try:
        return model, await asyncio.gather(*waiting)
    finally:
        assert await device.stop(60)
        model.close()


async def same_alone_and_together(folder: Path, requests: list[Arrays]) -> tuple[TensorModel, list[Arrays]]:
    model, together = await answers(folder, requests, max_batch=4)
    assert model.lane.num_runs < len(requests)
    _, alone = await answers(folder, requests, max_batch=1)
    for first, second in zip(together, alone, strict=True):
        for name, array in first.items():
            np.testing.assert_allclose(array, second[name], atol=1e-5)
    return model, together


def head_and_tail(content: bytes) -> NDArray[np.int32]:
    """What Magika looks at: the first and last 1024 bytes without blanks around them, filled up with 256."""
    stripped = content.strip()
    head, tail = list(stripped[:1024]), list(stripped[-1024:])
    return np.array([[*head, *[256] * (1024 - len(head)), *[256] * (1024 - len(tail)), *tail]], np.int32)


async def test_magika_knows_files_by_their_bytes(pulled: Callable[[str], Path]) -> None:
    markup = b"<!DOCTYPE html><html><head><title>mill</title></head><body><p>water</p></body></html>\n" * 20
    table = b"name,litres,metres\n" + b"mill,20,3\nrace,31,4\n" * 40
    requests = [{"bytes": head_and_tail(content)} for content in (PYTHON, markup, table)]
    model, given = await same_alone_and_together(pulled("magika"), requests)
    assert [model.labels[int(each["target_label"].argmax())] for each in given] == ["python", "html", "csv"]


async def test_open_nsfw_finds_noise_and_plain_colours_safe(pulled: Callable[[str], Path]) -> None:
    generator = np.random.default_rng(0)
    pictures = [
        generator.uniform(-110, 140, (1, 224, 224, 3)),
        np.zeros((1, 224, 224, 3)),
        np.full((1, 224, 224, 3), 90),
    ]
    requests = [{"input_0": picture.astype(np.float32)} for picture in pictures]
    model, given = await same_alone_and_together(pulled("open-nsfw"), requests)
    assert model.labels == ("sfw", "nsfw")
    for each in given:
        assert each["4195"].shape == (1, 2)
        assert each["4195"].sum() == pytest.approx(1, abs=1e-5)
        assert each["4195"].argmax() == 0


async def test_lines_of_any_width_are_read_and_equal_ones_together(pulled: Callable[[str], Path]) -> None:
    folder = pulled("pp-ocrv4-rec")
    generator = np.random.default_rng(0)
    widths = [96, 160, 96, 320]
    requests = [{"x": generator.uniform(-1, 1, (1, 3, 48, width)).astype(np.float32)} for width in widths]
    model, given = await same_alone_and_together(folder, requests)
    (output,) = model.facts.outputs
    assert [each[output.name].shape for each in given] == [(1, width // 8, 6625) for width in widths]
    assert len((folder / "characters.txt").read_text().splitlines()) == 6623  # without the blanks of the alphabet


@pytest.mark.slow
async def test_two_encoders_joined_in_one_graph_are_imported_and_answer_as_each_alone(
    pulled: Callable[[str], Path], models: Path, tmp_path: Path
) -> None:
    """Its weights lie beside it, in two files; its inputs are a picture, token ids of any length and their mask."""
    image, text = model_folder.read(pulled("open-nsfw")), model_folder.read(models / "all-minilm-l6-v2")
    source = join(image, text, tmp_path / "source")
    folder = import_onnx(source.path / "model.onnx", tmp_path / "joined", progress=lambda *_: None)
    assert folder.tensors.batched
    assert folder.manifest.changes == ()
    assert folder.total_bytes() == pytest.approx(source.total_bytes(), rel=0.05)
    generator = np.random.default_rng(0)
    pictures = [generator.uniform(-110, 140, (1, 224, 224, 3)).astype(np.float32) for _ in range(3)]
    ids = [generator.integers(1000, 9000, (1, 16)).astype(np.int32) for _ in range(3)]
    mask = np.ones((1, 16), np.int32)
    requests: list[Arrays] = [
        {"picture": picture, "ids": each, "mask": mask} for picture, each in zip(pictures, ids, strict=True)
    ]
    _, given = await answers(folder.path, requests, max_batch=4)
    _, alone = await answers(image.path, [{"input_0": picture} for picture in pictures], max_batch=4)
    encoder = load_encoder(text, threads=0)
    for both, scores, each in zip(given, alone, ids, strict=True):
        np.testing.assert_allclose(both["scores"], scores["4195"], atol=1e-5)
        np.testing.assert_allclose(both["vector"], encoder.run(each, np.array([16], np.int32)), atol=1e-5)
