"""A model folder is whole or not there, and damage is named."""

import errno
import os
from pathlib import Path

import pytest

from engine import model_folder
from engine.manifest import ChatFacts, Manifest, Source, TokenizerFacts
from engine.model_folder import (
    ModelError,
    read,
    seal,
    sha256,
    staged,
    verify,
)

CHAT = ChatFacts(
    layers=1,
    hidden=8,
    heads=1,
    kv_heads=1,
    head_dim=8,
    vocab_size=10,
    context=16,
    max_chunk=4,
    top_k=5,
    eos_ids=(0, 2),
)
MANIFEST = Manifest(
    name="tiny",
    kind="chat",
    architecture="llama",
    created="2030-01-01T00:00:00+00:00",
    source=Source(file="tiny.gguf", sha256="0" * 64),
    chat=CHAT,
    tokenizer=TokenizerFacts(kind="tiktoken", file="tokenizer.tiktoken", pattern=r"\p{N}", special={"<|end|>": 0}),
)


def write(path: Path, weights: bytes = b"weights") -> Path:
    with staged(path) as directory:
        (directory / "weights.bin").write_bytes(weights)
        (directory / "tokenizer.tiktoken").write_bytes(b"")
        seal(directory, MANIFEST)
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    folder = read(write(tmp_path / "models" / "tiny"))
    assert folder.manifest.model_copy(update={"files": {}}) == MANIFEST
    assert folder.chat == CHAT
    assert folder.file("weights.bin").read_bytes() == b"weights"
    assert folder.total_bytes() == 7
    assert [entry.name for entry in (tmp_path / "models").iterdir()] == ["tiny"]


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    write(tmp_path / "tiny")
    folder = read(write(tmp_path / "tiny", b"others"))
    assert folder.file("weights.bin").read_bytes() == b"others"
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny"]


def test_a_failed_import_leaves_the_old_folder(tmp_path: Path) -> None:
    write(tmp_path / "tiny")

    def fail_half_way() -> None:
        with staged(tmp_path / "tiny") as directory:
            (directory / "weights.bin").write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert read(tmp_path / "tiny").file("weights.bin").read_bytes() == b"weights"
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny"]


def test_what_a_killed_import_left_is_cleared(tmp_path: Path) -> None:
    left = tmp_path / ".tiny.partial"
    (left / "deeper").mkdir(parents=True)
    (left / "rubbish").write_bytes(b"rubbish")
    assert read(write(tmp_path / "tiny")).manifest.files.keys() == {"weights.bin", "tokenizer.tiktoken"}


def test_a_second_import_of_the_same_folder_is_refused(tmp_path: Path) -> None:
    with staged(tmp_path / "tiny") as directory:
        (directory / "tokenizer.tiktoken").write_bytes(b"")
        with pytest.raises(ModelError, match="another import of this model is running"):
            write(tmp_path / "tiny")
        seal(directory, MANIFEST)
    assert read(tmp_path / "tiny").name == "tiny"


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"No space left on device; free some space"), staged(tmp_path / "tiny"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelError, match="choose another models directory"):
        write(tmp_path / "file" / "tiny")


def test_each_damage_is_named_with_its_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "tiny")
    weights, manifest = folder / "weights.bin", folder / "model.yaml"
    text = manifest.read_text()

    weights.write_bytes(b"Weights")
    with pytest.raises(ModelError, match=r"weights\.bin: differs from its SHA-256"):
        read(folder)
    weights.write_bytes(b"weight")
    with pytest.raises(ModelError, match=r"weights\.bin: has 6 bytes, the manifest says 7"):
        read(folder)
    weights.unlink()
    with pytest.raises(ModelError, match=r"weights\.bin: No such file"):
        read(folder)

    manifest.write_text(text.replace("layers: 1", "layers: many"))
    with pytest.raises(ModelError, match=r"(?s)model\.yaml: is damaged.*chat: layers: "):
        read(folder)
    manifest.write_text(text.replace("+00:00", "?"))
    with pytest.raises(ModelError, match=r"(?s)model\.yaml: is damaged.*isoformat"):
        read(folder)
    manifest.write_text(text.replace("kind: chat", "kind: embedding"))
    with pytest.raises(ModelError, match="a model of kind embedding needs the table embedding"):
        read(folder)
    manifest.write_text(text.replace("format: 1", "format: 2"))
    with pytest.raises(ModelError, match="not a manifest of format 1"):
        read(folder)
    manifest.write_text("a: [")
    with pytest.raises(ModelError, match="is not YAML"):
        read(folder)
    manifest.unlink()
    with pytest.raises(ModelError, match="headrace model pull"):
        read(folder)


@pytest.mark.parametrize("name", ["../weights.bin", "/etc/passwd", "a/b", "..", ".hidden", ""])
def test_a_manifest_names_nothing_outside_its_folder(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "tiny")
    manifest = folder / "model.yaml"
    manifest.write_text(manifest.read_text().replace("  weights.bin:", f"  '{name}':"))
    with pytest.raises(ModelError, match="is damaged"):
        read(folder)


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    folder = write(tmp_path / "tiny", b"")
    (folder / "weights.bin").unlink()
    os.mkfifo(folder / "weights.bin")  # reading it would wait for a writer
    with pytest.raises(ModelError, match=r"weights\.bin: is not a file"):
        read(folder)


@pytest.mark.parametrize(
    "text",
    [
        b"format: 1\na: &a [x, x]\nb: [*a, *a]",
        b"format: 1\na: " + b"[" * 5000 + b"]" * 5000,
        b"format: 1\na: " + b"9" * 6000,
        b"format: 1\na: 2030-13-45",
        b"format: 1\na: \xff",
        b"#" * (5 << 20),
    ],
    ids=["aliases", "nesting", "digits", "date", "bytes", "size"],
)
def test_hostile_yaml_is_a_damaged_manifest(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "model.yaml").write_bytes(text)
    with pytest.raises(ModelError, match=r"model\.yaml: is (not YAML|larger)"):
        read(tmp_path)


def test_large_files_are_hashed_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = read(write(tmp_path / "tiny"))
    verify(folder)
    monkeypatch.setattr(model_folder, "HASHED_AT_READ_BYTES", 3)
    (tmp_path / "tiny" / "weights.bin").write_bytes(b"Weights")
    assert read(folder.path) == folder
    with pytest.raises(ModelError, match=r"weights\.bin: differs"):
        verify(folder)


def test_facts_of_another_kind_are_refused(tmp_path: Path) -> None:
    folder = read(write(tmp_path / "tiny"))
    with pytest.raises(ModelError, match="of kind chat, not embedding"):
        _ = folder.embedding
    with pytest.raises(ModelError, match=r"lists no file model\.onnx"):
        folder.file("model.onnx")


def test_a_files_hash_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert sha256(tmp_path / "empty").startswith("e3b0c44298fc1c14")
