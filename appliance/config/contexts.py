"""How many tokens the chat models of this box take, by name: what the edge must know to judge a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from appliance.config.tables import HeadraceConfig
from engine import manifest
from engine.model_folder import MANIFEST, ModelError

_MAX_FOLDERS = 1000  # of a repository


def contexts_of(config: HeadraceConfig, root: Path) -> dict[str, int]:
    """Tokens of prompt and answer, of each chat model that is configured or lies in the repository. A folder that
    cannot be read is left out: ``appliance.config.references`` tells why."""
    contexts = {}
    for name, folder in _folders(config, root):
        with suppress(OSError, ModelError):
            path = folder / MANIFEST
            facts = manifest.parse(path.read_bytes(), path).chat
            if facts is not None:
                own = config.models.by_name.get(name)
                contexts[name] = (own.context if own is not None else None) or facts.context
    return contexts


def _folders(config: HeadraceConfig, root: Path) -> Iterator[tuple[str, Path]]:
    models = config.models
    if models.repository is not None:
        with suppress(OSError):
            for folder in islice(sorted((root / models.repository).iterdir()), _MAX_FOLDERS):
                yield folder.name, folder
    for name, model in models.by_name.items():
        if model.path is not None or models.repository is not None:
            yield name, root / models.path_of(name)
