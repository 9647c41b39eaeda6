"""The model folder: how a model lies on disk once an importer has made it ready to serve.

Owns the folder's layout, its manifest (`model.yaml`), reading it back with the damage named, and writing it so that a
folder is either whole or not there. Knows nothing of ONNX Runtime, of tokenizers or of the formats that importers read.

    model.yaml            this manifest: what the model is and the size and SHA-256 of every other file
    model.onnx            the graph
    weights.bin           its weights, memory-mapped when the model is loaded
    tokenizer.*           the vocabulary; chat_template.jinja for a chat model
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

MANIFEST = "model.yaml"
GRAPH = "model.onnx"
WEIGHTS = "weights.bin"
CHAT_TEMPLATE = "chat_template.jinja"
RANKS = "tokenizer.tiktoken"

HASHED_AT_READ_BYTES = 32 << 20  # larger files are compared by size alone when a model is loaded; `verify` hashes all


class ModelError(ImportError):
    """A model that cannot be imported or read. The message says what is wrong, with which file, and what to do."""


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class FileRecord(_Table):
    """What one file of the folder must be."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Source(_Table):
    """Where the weights came from."""

    file: str
    sha256: str


class ChatFacts(_Table):
    """What the engine must know of a decoder-only language model before it loads the graph."""

    layers: int = Field(ge=1)
    hidden: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    context: int = Field(ge=1)  # tokens
    max_chunk: int = Field(ge=1)  # tokens that one sequence may add in one run
    top_k: int = Field(ge=1)  # how many of the best logits the graph hands out, descending
    eos_ids: tuple[int, ...]  # ids that end an answer
    bos_id: int | None = None
    add_bos: bool = False  # whether a prompt must begin with bos_id when the template has not put it there


class EmbeddingFacts(_Table):
    """What the engine must know of an embedding model before it loads the graph."""

    dimensions: int = Field(ge=1)
    max_tokens: int = Field(ge=1)  # special tokens included
    pooling: Literal["mean"] = "mean"
    normalized: bool = True
    pad_id: int = 0


class TokenizerFacts(_Table):
    """How text becomes ids: `tiktoken` reads `file` as ranks, `tokenizers` as a tokenizer.json."""

    kind: Literal["tiktoken", "tokenizers"]
    file: str
    pattern: str | None = None  # tiktoken: the regular expression that splits text before merging
    special: dict[str, int] = Field(default_factory=dict)  # text of each control token and its id
    unknown_id: int | None = None  # stands for bytes that the vocabulary lacks


class Manifest(_Table):
    """The contents of `model.yaml`."""

    format: Literal[1] = 1
    name: str = Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")
    kind: Literal["chat", "embedding"]
    architecture: str
    license: str | None = None
    created: str
    source: Source
    chat: ChatFacts | None = None
    embedding: EmbeddingFacts | None = None
    tokenizer: TokenizerFacts
    files: dict[str, FileRecord] = Field(default_factory=dict)


class ModelFolder(_Table):
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


def created_now() -> str:
    """The present instant as the manifest's `created` spells it: RFC 3339 in UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal, read in bounded pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_manifest(path: Path) -> Manifest:
    source = path / MANIFEST
    try:
        document: Any = yaml.safe_load(source.read_bytes())
    except OSError as error:
        raise ModelError(
            f"{source}: {error.strerror}; is this a model folder? `headrace model pull` makes one"
        ) from error
    except yaml.YAMLError as error:
        raise ModelError(f"{source}: is not YAML ({error}); import the model again") from error
    if not isinstance(document, dict) or document.get("format") != 1:
        raise ModelError(f"{source}: is not a manifest of format 1, the one this version reads; import the model again")
    try:
        return Manifest.model_validate_json(orjson.dumps(document))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ModelError(f"{source}: is damaged ({where}: {first['msg']}); import the model again") from error
    except TypeError as error:
        raise ModelError(f"{source}: is damaged ({error}); import the model again") from error


def _check_file(path: Path, record: FileRecord, *, hashed: bool) -> None:
    try:
        size = path.stat().st_size
        if size != record.bytes:
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
