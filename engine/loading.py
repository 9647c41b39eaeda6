"""From a model's settings to its entry in the fleet, and from its folder to the loaded model.

Owns what a model is expected to take before it is loaded, and which failures are permanent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from engine import model_folder
from engine.entry import Entry, Source
from engine.errors import EngineError
from engine.llm.kv import KvShape
from engine.model import Model, ModelKind
from engine.model_folder import ModelError, ModelFolder
from engine.providers import why_absent
from engine.residency import Need
from engine.session import installed_providers
from engine.settings import ModelSettings

_ALL_BYTES = 1 << 62  # on a GPU keys and values are allocated whole, so nothing needs to bound them

#: What a loaded model takes for each byte of its files: the runtime lays quantised weights out anew beside the mapped
#: ones (SmolLM2-135M: 135 MB for 109 MB). What is only mapped the system can take back.
_LOADED_PER_FILE_BYTE = 1.25
#: And an embedding model, which has two sessions (MiniLM: 124 MB for 91 MB).
_EMBEDDING_PER_FILE_BYTE = 1.5


def open_entry(settings: ModelSettings, threads: int, quiet: Callable[[], object] | None = None) -> Entry:
    """A model that is to be served. threads: of one run; quiet: see ``load``. Raises EngineError as ``read_source``."""
    return Entry(
        settings.name,
        read_source(settings, threads, quiet),
        reread=partial(read_source, settings, threads),
        max_waiting=settings.max_queue,
        idle_unload_s=settings.idle_unload_s,
    )


def read_source(settings: ModelSettings, threads: int, quiet: Callable[[], object] | None = None) -> Source:
    """Read the model's folder, without its weights. threads: of one run. Raises EngineError, also when the model's
    provider is not installed: it may be long until it is loaded."""
    folder = _read(settings)
    settings = _placed(settings, folder)
    if why := why_absent(settings.placement, installed_providers()):
        raise EngineError(f"model {settings.name!r}: {why}", permanent=True)
    return Source(
        folder.manifest.kind,
        partial(load, settings, folder.manifest.kind, threads, quiet=quiet),
        need=need(folder, settings),
        created=int(datetime.fromisoformat(folder.manifest.created).timestamp()),
        version=folder.manifest.version,
        manifest=folder.manifest,
    )


def need(folder: ModelFolder, settings: ModelSettings) -> Need:
    """What the model takes of the box's memory at least; one that runs on a GPU in any case takes none."""
    if "cpu" not in settings.placement.tried:
        return Need(0)
    per_byte = _EMBEDDING_PER_FILE_BYTE if folder.manifest.kind == "embedding" else _LOADED_PER_FILE_BYTE
    weights_bytes = int(folder.total_bytes() * per_byte * folder.manifest.num_instances(settings.instances))
    facts = folder.manifest.chat
    if facts is None:
        return Need(weights_bytes)
    context = settings.context or facts.context
    return Need(weights_bytes, KvShape.of(facts, slots=1, context=context).committed_bytes(context))


def load(
    settings: ModelSettings, kind: ModelKind, threads: int, kv_bytes: int, quiet: Callable[[], object] | None = None
) -> Model:
    """Load and warm up a model of this kind. kv_bytes: what it may take for keys and values; quiet: waits until nothing
    beside it disturbs the timing of its steps. Blocking; raises EngineError.

    What only models of another kind need is not imported.
    """
    folder = _read(settings)
    settings = _placed(settings, folder)
    if settings.provider != "cpu":
        settings = replace(settings, prefix_ttl_s=0)  # see engine.llm.device_kv
    if "cpu" not in settings.placement.tried:
        kv_bytes = _ALL_BYTES
    try:
        if kind == "chat":
            from engine.llm.chat import ChatModel

            return ChatModel.load(folder, settings, threads=threads, kv_bytes=kv_bytes, quiet=quiet)
        if kind == "tensor":
            from engine.tensors.load import load_tensor_model

            return load_tensor_model(folder, settings, threads=threads)
        from engine.embedder import load_embedder

        return load_embedder(folder, settings, threads=threads)
    except ModelError as error:
        raise _permanent(settings, error) from error
    except MemoryError as error:
        message = f"model {settings.name!r}: not enough memory ({error or 'none left'})"
        raise EngineError(message, permanent=False) from error


def _placed(settings: ModelSettings, folder: ModelFolder) -> ModelSettings:
    """With the folder's own provider where the configuration names none."""
    return replace(settings, provider=settings.provider or folder.manifest.provider or "cpu")


def _read(settings: ModelSettings) -> ModelFolder:
    try:
        return model_folder.read(Path(settings.path))
    except ModelError as error:
        raise _permanent(settings, error) from error


def _permanent(settings: ModelSettings, error: ModelError) -> EngineError:
    return EngineError(f"model {settings.name!r}: {error}", permanent=True)
