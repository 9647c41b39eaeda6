"""What the edge must know of this box's models to judge a prompt: how many tokens they take, and how they count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from appliance.config.tables import HeadraceConfig
from engine import manifest
from engine.manifest import Manifest
from engine.model_folder import MANIFEST, ModelError
from proxy.config_models import MAX_TOKENIZERS, Tokenizer

_MAX_FOLDERS = 1000  # of a repository


def contexts_of(config: HeadraceConfig, root: Path) -> dict[str, int]:
    """Tokens of prompt and answer, of each chat model that is configured or lies in the repository. A folder that
    cannot be read is left out: ``appliance.config.references`` tells why."""
    contexts = {}
    for name, _, facts in _models(config, root):
        if facts.chat is not None:
            own = config.models.by_name.get(name)
            contexts[name] = (own.context if own is not None else None) or facts.chat.context
    return contexts


def tokenizers_of(config: HeadraceConfig, root: Path) -> dict[str, Tokenizer]:
    """The tokenizer of each such model that reads text. Of different ones there are MAX_TOKENIZERS at most, those of
    configured models first: each takes memory of every worker that counts with it."""
    found: dict[str, Tokenizer] = {}
    known: set[str] = set()
    for name, folder, facts in sorted(_models(config, root), key=lambda each: each[0] not in config.models.by_name):
        own = facts.tokenizer
        record = facts.files.get(own.file) if own is not None else None
        if own is None or record is None or (record.sha256 not in known and len(known) >= MAX_TOKENIZERS):
            continue
        known.add(record.sha256)
        file = str((folder / own.file).absolute())
        found[name] = Tokenizer(kind=own.kind, file=file, sha256=record.sha256, pattern=own.pattern, nfc=own.nfc)
    return found


def instances_of(config: HeadraceConfig, root: Path) -> dict[str, int]:
    """Sessions of each model of tensors, as its folder says."""
    return {name: facts.num_instances() for name, _, facts in _models(config, root)}


def _models(config: HeadraceConfig, root: Path) -> Iterator[tuple[str, Path, Manifest]]:
    for name, folder in _folders(config, root):
        with suppress(OSError, ModelError):
            path = folder / MANIFEST
            yield name, folder, manifest.parse(path.read_bytes(), path)


def _folders(config: HeadraceConfig, root: Path) -> Iterator[tuple[str, Path]]:
    models = config.models
    if models.repository is not None:
        with suppress(OSError):
            for folder in islice(sorted((root / models.repository).iterdir()), _MAX_FOLDERS):
                yield folder.name, folder
    for name, model in models.by_name.items():
        if model.path is not None or models.repository is not None:
            yield name, root / models.path_of(name)
