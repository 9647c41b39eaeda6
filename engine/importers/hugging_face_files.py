"""The small files of a folder as Hugging Face lays it out, read within bounds. Knows nothing of any model."""

from pathlib import Path
from typing import Any

import orjson
import yaml

from engine.model_folder import ModelError

_JSON_LIMIT_BYTES = 64 << 20
_CARD_LIMIT_CHARACTERS = 1 << 20


def read_json(path: Path, kind: type = dict) -> Any:
    """The document, an object unless `kind` says otherwise. Raises ModelError."""
    try:
        if path.stat().st_size > _JSON_LIMIT_BYTES:
            raise ModelError(f"{path}: is larger than {_JSON_LIMIT_BYTES >> 20} MiB; no configuration is")
        document = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}; the directory must hold the whole model") from error
    except orjson.JSONDecodeError as error:
        raise ModelError(f"{path}: is not JSON ({error}); fetch the file again") from error
    if not isinstance(document, kind):
        raise ModelError(f"{path}: is not a JSON {'object' if kind is dict else 'array'}; fetch the file again")
    return document


def read_license(path: Path) -> str | None:
    """The license in the YAML header of a model card; None when there is no card, or none that says."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            card = file.read(_CARD_LIMIT_CHARACTERS)
        header = yaml.safe_load(card.split("---\n", 2)[1]) if card.startswith("---\n") else None
    except (OSError, yaml.YAMLError):
        return None
    found = header.get("license") if isinstance(header, dict) else None
    return found if isinstance(found, str) else None
