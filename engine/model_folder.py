"""The model folder: how a model lies on disk once an importer has made it ready to serve.

Owns the folder's layout, reading it back with the damage named, and writing it so that a folder is either whole or not
there. What the manifest says is engine/manifest.py's. Knows nothing of ONNX Runtime, tokenizers or import formats.

    model.yaml            this manifest: what the model is and the size and SHA-256 of every other file
    model.onnx            the graph
    weights.bin           its weights, memory-mapped when the model is loaded
    tokenizer.*           the vocabulary; chat_template.jinja for a chat model
"""

import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from engine.manifest import (
    ChatFacts,
    EmbeddingFacts,
    FileRecord,
    Manifest,
    TensorModelFacts,
    TokenizerFacts,
    parse,
)
from engine.manifest import ModelError as ModelError

MANIFEST = "model.yaml"
GRAPH = "model.onnx"
WEIGHTS = "weights.bin"
CHAT_TEMPLATE = "chat_template.jinja"
RANKS = "tokenizer.tiktoken"

HASHED_AT_READ_BYTES = 32 << 20  # larger files are compared by size alone when a model is loaded; `verify` hashes all


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder whose manifest has been read and whose files have been found as it says."""

    path: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """The model's name as its importer gave it."""
        return self.manifest.name

    @property
    def chat(self) -> ChatFacts:
        """The facts of a chat model; ModelError when this is another kind."""
        if self.manifest.chat is None:
            raise ModelError(f"{self.path}: is a model of kind {self.manifest.kind}, not chat; choose another folder")
        return self.manifest.chat

    @property
    def embedding(self) -> EmbeddingFacts:
        """The facts of an embedding model; ModelError when this is another kind."""
        if self.manifest.embedding is None:
            raise ModelError(
                f"{self.path}: is a model of kind {self.manifest.kind}, not embedding; choose another folder"
            )
        return self.manifest.embedding

    @property
    def tensors(self) -> TensorModelFacts:
        """The inputs and outputs of a tensor model; ModelError when this is another kind."""
        if self.manifest.tensors is None:
            raise ModelError(f"{self.path}: is a model of kind {self.manifest.kind}, not tensor; choose another folder")
        return self.manifest.tensors

    @property
    def tokenizer(self) -> TokenizerFacts:
        """How text becomes ids; ModelError when the model takes no text."""
        if self.manifest.tokenizer is None:
            raise ModelError(f"{self.path / MANIFEST}: has no table tokenizer; import the model again")
        return self.manifest.tokenizer

    def file(self, name: str) -> Path:
        """The path of one of the folder's files; ModelError when the manifest does not list it."""
        if name not in self.manifest.files:
            raise ModelError(f"{self.path / MANIFEST}: lists no file {name}; import the model again")
        return self.path / name

    def total_bytes(self) -> int:
        """The size of the files that the manifest lists."""
        return sum(record.bytes for record in self.manifest.files.values())


def read(path: Path) -> ModelFolder:
    """Read the manifest of the folder at `path` and check every file against it.

    Sizes are compared for all files, SHA-256 for those up to HASHED_AT_READ_BYTES. Raises ModelError.
    """
    folder = ModelFolder(path=path, manifest=_read_manifest(path))
    for name, record in folder.manifest.files.items():
        _check_file(path / name, record, hashed=record.bytes <= HASHED_AT_READ_BYTES)
    return folder


def verify(folder: ModelFolder) -> None:
    """Hash every file of the folder, however large. Raises ModelError at the first that differs."""
    for name, record in folder.manifest.files.items():
        _check_file(folder.path / name, record, hashed=True)


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Give a directory to fill; on a clean exit it becomes `path`, otherwise it is removed.

    The directory lies beside `path`, so the last step is a rename; what an interrupted import left there is cleared.
    The body ends with `seal`. Raises ModelError when another import of the same folder runs, and for a full disk.
    """
    partial = path.parent / f".{path.name}.partial"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _claim(partial)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror}); choose another models directory") from error
    try:
        _clear(partial)
        yield partial
        _swap(partial, path)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        what = error.filename or path
        raise ModelError(f"{what}: {error.strerror}; free some space or choose another models directory") from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def seal(directory: Path, manifest: Manifest) -> None:
    """Write `model.yaml` into a filled directory with the size and hash of every file in it, and sync all to disk."""
    files: dict[str, FileRecord] = {}
    for entry in sorted(directory.iterdir()):
        files[entry.name] = FileRecord(bytes=entry.stat().st_size, sha256=sha256(entry))
        _sync(entry)
    whole = manifest.model_copy(update={"files": files})
    text = yaml.safe_dump(whole.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True)
    target = directory / MANIFEST
    target.write_text(text, encoding="utf-8")
    _sync(target)
    _sync(directory)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal, read in bounded pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_manifest(path: Path) -> Manifest:
    source = path / MANIFEST
    try:
        text = source.read_bytes()
    except OSError as error:
        raise ModelError(
            f"{source}: {error.strerror}; is this a model folder? `headrace model pull` makes one"
        ) from error
    return parse(text, source)


def _check_file(path: Path, record: FileRecord, *, hashed: bool) -> None:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path}: is not a file; import the model again")
        if (size := status.st_size) != record.bytes:
            raise ModelError(f"{path}: has {size} bytes, the manifest says {record.bytes}; import the model again")
        if hashed and sha256(path) != record.sha256:
            raise ModelError(f"{path}: differs from its SHA-256 in the manifest; import the model again")
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}; import the model again") from error


def _claim(partial: Path) -> int:
    """Lock the staging directory; the lock dies with its holder, so a killed import blocks nobody."""
    partial.mkdir(exist_ok=True)
    lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_ino == os.stat(partial).st_ino:  # else its holder has renamed it since it was opened
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    raise ModelError(f"{partial}: another import of this model is running; wait for it to end")


def _clear(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _swap(partial: Path, path: Path) -> None:
    """Put the new folder in the old one's place. A model that is being served keeps its mapped files."""
    old = path.parent / f".{path.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    partial.rename(path)
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
