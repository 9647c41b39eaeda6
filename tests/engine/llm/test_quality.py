"""A model against its source: in float32 it strays nowhere, with rounded activations a little, another model far."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from appliance import exit_codes
from appliance.cli import run
from engine.importers.gguf import import_gguf
from engine.llm.decoder import load_decoder
from engine.llm.quality import PIECE_TOKENS, Quality, measure
from engine.llm.sample_text import SAMPLE_TEXT
from engine.model_folder import ModelFolder
from tests.engine.reference import Reference, log_softmax
from tests.engine.tiny_gguf import write_tiny_gguf

TOKENS = [1, *range(40, 42 + 2 * PIECE_TOKENS)]  # the last piece is not a whole one


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("quality") / "tiny.gguf", kinds={"token_embd": "Q8_0"})


@pytest.fixture(scope="module")
def exact(file: Path) -> ModelFolder:
    return import_gguf(file, file.parent / "exact")


@pytest.fixture(scope="module")
def source(file: Path) -> ModelFolder:
    return import_gguf(file, file.parent / "source", weights="float32")


def compare(model: ModelFolder, source: ModelFolder) -> Quality:
    return measure(*(load_decoder(each, slots=1, threads=1) for each in (model, source)), TOKENS)


def test_the_source_in_float32_is_the_dequantised_model(file: Path, source: ModelFolder) -> None:
    quality = compare(source, source)
    assert (quality.tokens, quality.top_1) == (len(TOKENS), 1.0)
    assert quality.kl_mean == pytest.approx(0, abs=1e-9)
    likelihoods = log_softmax(Reference(gguf.GGUFReader(file)).logits(TOKENS))[np.arange(len(TOKENS) - 1), TOKENS[1:]]
    assert quality.source_perplexity == pytest.approx(np.exp(-likelihoods.mean()), rel=1e-5)
    assert quality.perplexity == pytest.approx(quality.source_perplexity)


def test_rounded_activations_stray_a_little(exact: ModelFolder, source: ModelFolder) -> None:
    quality = compare(exact, source)
    assert 1e-7 < quality.kl_mean < 2e-3
    assert quality.top_1 > 0.7
    assert quality.perplexity == pytest.approx(quality.source_perplexity, rel=0.05)


def test_another_model_strays_far(exact: ModelFolder, tmp_path: Path) -> None:
    other = import_gguf(write_tiny_gguf(tmp_path / "other.gguf", seed=1), tmp_path / "other", weights="float32")
    quality = compare(exact, other)
    assert quality.kl_mean > 0.1
    assert quality.top_1 < 0.5


def test_the_command_compares_along_a_text_and_removes_the_source(
    file: Path, exact: ModelFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text(SAMPLE_TEXT[:120])
    before = set(file.parent.iterdir())
    command = ["model", "quality", "exact", "--dir", str(file.parent), "--against", str(file), "--text", str(text)]
    assert run([*command, "--json"]) == exit_codes.OK
    said = json.loads(capsys.readouterr().out)
    assert said["name"] == "exact"
    assert said["tokens"] > 50
    assert 0 < said["kl_mean"] < 2e-3
    assert run(command) == exit_codes.OK
    assert "against tiny.gguf in float32\nKL divergence, mean   0.0" in capsys.readouterr().out
    assert set(file.parent.iterdir()) == before


def test_a_source_that_is_none_is_named(
    file: Path, exact: ModelFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["model", "quality", str(exact.path), "--against", str(tmp_path / "absent.gguf")]
    assert run(command) == exit_codes.FAILED
    assert "absent.gguf: is not there; give a .gguf, .onnx or .pt2 file" in capsys.readouterr().err
    (tmp_path / "text").write_text("")
    assert run([*command[:-1], str(file), "--text", str(tmp_path / "text")]) == exit_codes.FAILED
    assert "fewer than two tokens; give a longer one" in capsys.readouterr().err
