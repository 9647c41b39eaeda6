"""Which tokenizers of this box's models the edge is told of."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from proxy.config_models import MAX_TOKENIZERS, Tokenizer
from tests.appliance.config_files import LISTENER, ConfigFiles


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConfigFiles:
    return ConfigFiles(tmp_path, monkeypatch.setenv)


def sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def folder(place: ConfigFiles, name: str, content: str = "a", **tokenizer: object) -> None:
    """A model whose tokenizer is a file with this content, of one character."""
    facts: dict[str, Any] = {"kind": "tiktoken", "file": "own.tiktoken", **tokenizer}
    place.model_folder(name, tokenizer=facts, files={facts["file"]: {"bytes": 1, "sha256": sha256(content)}})
    place.file(f"{name}/{facts['file']}", content)


def told(place: ConfigFiles, models: str) -> dict[str, Tokenizer]:
    return place.load(f"{LISTENER}models: {models}\nworkers: 1\n").proxy.engine_tokenizers


def test_configured_models_and_those_of_the_repository(place: ConfigFiles) -> None:
    folder(place, "all/one", pattern=r"\S+", nfc=True)
    folder(place, "all/two", "b", kind="tokenizers", file="tokenizer.json")
    place.model_folder("all/three")  # whose manifest has no record of the file
    place.file("all/four/model.yaml", "{")
    folder(place, "elsewhere", "c")
    found = told(place, "{repository: all, named: {path: elsewhere}}")
    assert found == {
        "one": Tokenizer(
            kind="tiktoken", file=str(place.root / "all/one/own.tiktoken"), sha256=sha256("a"), pattern=r"\S+", nfc=True
        ),
        "two": Tokenizer(kind="tokenizers", file=str(place.root / "all/two/tokenizer.json"), sha256=sha256("b")),
        "named": Tokenizer(kind="tiktoken", file=str(place.root / "elsewhere/own.tiktoken"), sha256=sha256("c")),
    }


def test_of_too_many_the_configured_ones_stay_and_equal_ones_count_once(place: ConfigFiles) -> None:
    for at in range(MAX_TOKENIZERS + 3):
        folder(place, f"all/m{at:02}", f"{at:x}")
    folder(place, "all/z", "e")
    folder(place, "all/like-z", "e")
    found = told(place, "{repository: all, z: {}}")
    assert set(found) == {"z", "like-z", *(f"m{at:02}" for at in range(MAX_TOKENIZERS - 1))}
