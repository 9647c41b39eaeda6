"""Tokenizers of local models: read once, left out where they cannot be, and counting as the engine does."""

from __future__ import annotations

import logging
from base64 import b64encode
from pathlib import Path

import pytest

from engine.llm.vocabulary import load_vocabulary
from engine.model_folder import read
from proxy.config_models import Tokenizer
from proxy.llm import own_tokenizers
from proxy.llm.count import count_texts
from proxy.llm.own_tokenizers import counters_by_name, own_counter

RANKS = b"\n".join(b"%b %d" % (b64encode(token), rank) for rank, token in enumerate([b"the", b" the", b" ", b"t"]))


def tokenizer(path: Path, digest: str = "a") -> Tokenizer:
    return Tokenizer(kind="tiktoken", file=str(path), sha256=digest * 64, pattern=r" ?\p{L}+|\s+")


def test_two_models_with_one_tokenizer_have_one_counter(tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    path.write_bytes(RANKS)
    found = counters_by_name({"one": tokenizer(path), "two": tokenizer(path)})
    assert found["one"] is found["two"]
    assert count_texts(["the the"], found["one"]) == 2


def test_what_cannot_be_read_is_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "none").write_bytes(b"no ranks at all")
    (tmp_path / "large").write_bytes(RANKS * 100)
    monkeypatch.setattr(own_tokenizers, "MAX_FILE_BYTES", len(RANKS))
    files = {name: tokenizer(tmp_path / name, "b") for name in ("gone", "none", "large")}
    with caplog.at_level(logging.WARNING):
        assert counters_by_name(files) == {}
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == list(files)


@pytest.mark.model
@pytest.mark.parametrize(
    "text",
    [
        "The wheel turns.",
        "na\u00efve caf\u00e9 e\u0301",
        "\u4f60\u597d\uff0c\u4e16\u754c",
        "\x00\x7f\u200b",
        "<|im_end|> x",
        "  \n\t ",
        "1234567",
    ],
)
def test_a_real_models_tokens_are_counted_as_the_engine_does(models: Path, text: str) -> None:
    folder = read(models / "smollm2-135m-instruct")
    facts = folder.tokenizer
    own = own_counter(
        Tokenizer(
            kind=facts.kind, file=str(folder.file(facts.file)), sha256="0" * 64, pattern=facts.pattern, nfc=facts.nfc
        )
    )
    assert count_texts([text], own) == len(load_vocabulary(folder).encode_text(text, max_tokens=1000))
