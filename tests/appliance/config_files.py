"""A directory with a configuration and what it names, for tests."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from appliance.certs import ensure_local
from appliance.config import Configuration, ConfigurationError, load
from appliance.hosts import parse_host

LISTENER = "listeners: [{address: '127.0.0.1:8080'}]\n"

_SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab_size", "context", "max_chunk", "top_k")


class ConfigFiles:
    """Writes files under ``root``; ``environ`` sets a variable until the test ends."""

    def __init__(self, root: Path, environ: Callable[[str, str], None]) -> None:
        self.root = root
        self.environ = environ

    def file(self, name: str, content: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def certificate(self, cert: str, key: str) -> None:
        """Puts a new certificate and its key at these names."""
        made = ensure_local(self.root / f"ca-of-{cert.replace('/', '-')}", [parse_host("localhost")], datetime.now(UTC))
        self.file(cert, made.cert.read_bytes())
        self.file(key, made.key.read_bytes())

    def model_folder(self, name: str, **changes: object) -> Path:
        """The least that counts as a whole model folder."""
        manifest = {
            "format": 1,
            "name": Path(name).name,
            "kind": "chat",
            "architecture": "llama",
            "created": "2026-01-01T00:00:00Z",
            "source": {"file": "model.gguf", "sha256": "0" * 64},
            "chat": {**dict.fromkeys(_SIZES, 1), "eos_ids": [0]},
            "tokenizer": {"kind": "tiktoken", "file": "tokenizer.tiktoken"},
            **changes,
        }
        return self.file(f"{name}/model.yaml", json.dumps(manifest)).parent

    def load(self, text: str) -> Configuration:
        """The configuration of a main file with this text."""
        return load(self.file("headrace.yaml", text))

    def problems(self, text: str | bytes) -> list[str]:
        """What is wrong with a main file with this text, its directory left out."""
        try:
            load(self.file("headrace.yaml", text))
        except ConfigurationError as error:
            return [str(problem).replace(f"{self.root}{os.sep}", "") for problem in error.problems]
        return []
