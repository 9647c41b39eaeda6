"""What a real model takes: while it is loaded, when it is, and what is left of it when it is unloaded."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from engine import memory, model_folder
from engine.device import Device
from engine.embedder import Embedder
from engine.errors import EngineError
from engine.fleet import Fleet
from engine.loading import load, need, open_entry
from engine.pool import Pool
from engine.settings import EngineSettings, ModelSettings
from engine.tensors.model import TensorModel
from engine.worker import EngineWorker
from tests.engine.tiny_tensors import linear, write_folder
from tests.fakes_engine import Engine, until

pytestmark = pytest.mark.model

CHAT, EMBEDDING = "smollm2-135m-instruct", "all-minilm-l6-v2"
ROOT = Path(__file__).resolve().parents[2]

#: Loads a model in a process of its own and says what it took, in KiB.
MEASURE = """
import json, sys
from engine.loading import load
from engine.settings import ModelSettings

def status():
    lines = [line.split() for line in open("/proc/self/status")]
    return {name[:-1]: int(rest[0]) for name, *rest in lines if name in ("VmHWM:", "VmRSS:", "RssAnon:")}

name, path = sys.argv[1:]
before = status()
model = load(ModelSettings(name="m", path=path, slots=4, context=2048), name, 2, 1 << 30)
print(json.dumps([before, status()]))
"""


@pytest.mark.parametrize(("kind", "name"), [("chat", CHAT), ("embedding", EMBEDDING)])
def test_loading_takes_little_more_than_the_loaded_model_and_that_is_foreseen(
    models: Path, kind: str, name: str
) -> None:
    """Weights are mapped and laid out tensor by tensor: at no time is there a second copy of the model."""
    command = [sys.executable, "-c", MEASURE, kind, str(models / name)]
    before, after = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    assert after["VmHWM"] <= 1.15 * after["VmRSS"]
    foreseen = need(model_folder.read(models / name), ModelSettings(name="m", path="", context=2048))
    assert (after["RssAnon"] - before["RssAnon"]) << 10 <= foreseen.total


async def test_an_unloaded_model_leaves_nothing_and_comes_back(models: Path) -> None:
    device = Device("cpu", [], asyncio.get_running_loop())
    device.start()
    now = 0.0
    settings = ModelSettings(name="m", path=str(models / CHAT), slots=4, context=2048, idle_unload_s=60)
    fleet = Fleet([open_entry(settings, 2)], device, budget=lambda: 1 << 30, clock=lambda: now)
    await fleet.start(lambda what: None)
    try:
        loaded = anonymous_bytes()
        now = 60.0
        await fleet.sweep()
        assert not fleet.loaded
        gone = anonymous_bytes()
        async with fleet.hold(fleet.entries["m"]) as model:
            assert model.kind == "chat"
        again = anonymous_bytes()
    finally:
        assert await device.stop(10)
        await fleet.close()
    weights_bytes = model_folder.read(models / CHAT).total_bytes()
    assert loaded - gone > 0.9 * weights_bytes
    assert again - loaded < 0.1 * weights_bytes


async def test_O10_a_model_that_was_swapped_leaves_nothing_and_needs_its_files_no_more(
    models: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(models / EMBEDDING, folder)
    device = Device("cpu", [], asyncio.get_running_loop())
    device.start()
    fleet = Fleet([open_entry(ModelSettings(name="m", path=str(folder)), 2)], device, budget=lambda: 1 << 30)
    entry = fleet.entries["m"]
    await fleet.start(lambda what: None)
    taken = []
    try:
        for _ in range(6):
            await fleet.load(entry)
            await until(lambda: len(entry.loaded) == 1)
            await fleet.sweep()
            taken.append(anonymous_bytes())
        shutil.rmtree(folder)
        with pytest.raises(EngineError, match=r"model\.yaml: No such file"):
            await fleet.load(entry)
        async with fleet.hold(entry) as model:
            assert isinstance(model, Embedder)
            answer = await model.embed(device, Pool(), ["a mill beside the river"])
        assert np.isfinite(answer.vectors).all()
    finally:
        assert await device.stop(10)
        await fleet.close()
    assert min(taken[3:]) - min(taken[:3]) < 16 << 20  # one model takes 75 MB, and may not quite be gone


async def test_two_models_that_do_not_fit_together_answer_in_turn(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = (
        ModelSettings(name="m", path=str(models / CHAT), slots=2, context=512),
        ModelSettings(name="e", path=str(models / EMBEDDING)),
    )
    first, second = [need(model_folder.read(Path(each.path)), each).total for each in folders]
    monkeypatch.setattr(memory, "reachable_bytes", lambda: 2 * (first + second // 2))
    worker = EngineWorker(EngineSettings(str(tmp_path / "e.sock"), folders, memory=0.5))
    await worker.start(lambda what: None)
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "e.sock"))) as session:
        assert worker._serving is not None
        served = Engine(worker._serving, session, "")
        for _ in range(2):
            assert (await served.post(max_tokens=4)).status == 200
            assert (await served.post("/v1/embeddings", model="e", messages=None, input="a mill")).status == 200
    numbers = worker.statistics()["models"]
    assert [numbers[name]["loads_total"] for name in ("m", "e")] == [2, 2]
    assert [numbers[name]["unloads_total"] for name in ("m", "e")] == [2, 1]
    assert await worker.drain(5)


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def test_what_cannot_be_loaded_is_told_as_what_it_is(models: Path, tmp_path: Path) -> None:
    settings = ModelSettings(name="m", path=str(models / CHAT), slots=4, context=2048)
    with pytest.raises(EngineError, match=r"'m': not enough memory \(a context of 2048 tokens takes 90 MiB") as caught:
        open_entry(settings, 1).source.load(1 << 20)
    assert not caught.value.permanent
    with pytest.raises(EngineError, match=r"'m': .*is a model of kind embedding, not chat") as caught:
        load(ModelSettings(name="m", path=str(models / EMBEDDING)), "chat", 1, 1 << 30)
    assert caught.value.permanent


def test_a_provider_that_is_not_installed_is_told_before_anything_is_loaded(models: Path) -> None:
    settings = ModelSettings(name="m", path=str(models / CHAT), provider="cuda")
    with pytest.raises(EngineError, match="model 'm': this onnxruntime has cpu, not cuda; install") as caught:
        open_entry(settings, 1)
    assert caught.value.permanent
    assert open_entry(dataclasses.replace(settings, fallback=("cpu",)), 1).source.need.total > 0


def test_each_instance_of_a_tensor_model_takes_its_weights(tmp_path: Path) -> None:
    one, three = [write_folder(tmp_path / f"m{num}", linear(), instances=num) for num in (1, 3)]
    needs = [need(folder, ModelSettings(name="m", path=str(folder.path))).weights for folder in (one, three)]
    assert needs[1] == pytest.approx(3 * needs[0], rel=0.05)
    said = [need(folder, ModelSettings(name="m", path="", instances=3)).weights for folder in (one, three)]
    assert said == pytest.approx([needs[1]] * 2, rel=0.05)


def test_the_configuration_says_how_many_instances_there_are_or_else_the_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", linear(), instances=2)
    for said, wanted in ((None, 2), (1, 1), (3, 3)):
        model = load(ModelSettings(name="m", path=str(folder.path), instances=said), "tensor", 1, 0)
        assert isinstance(model, TensorModel)
        assert model.num_instances == wanted
        model.close()


def test_a_folder_may_say_where_it_runs_unless_the_configuration_does(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", linear(), provider="cuda")
    settings = ModelSettings(name="m", path=str(folder.path))
    with pytest.raises(EngineError, match="this onnxruntime has cpu, not cuda"):
        open_entry(settings, 1)
    entry = open_entry(dataclasses.replace(settings, fallback=("cpu",)), 1)
    assert entry.source.kind == "tensor"
    with pytest.raises(EngineError, match="not tensorrt"):
        open_entry(dataclasses.replace(settings, provider="tensorrt"), 1)
    on_cpu = dataclasses.replace(settings, provider="cpu")
    load(on_cpu, open_entry(on_cpu, 1).kind, 1, 0).close()
