"""An embedding model against its source: cosines, neighbours, and the command that prints them."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from appliance import exit_codes
from appliance.cli import run
from engine.embedding_quality import compare
from engine.importers.hugging_face import import_hugging_face
from tests.engine.tiny_bert import SHAPE, WORDS, make_tokenizer, make_weights, write_bert_folder


def test_the_same_vectors_have_a_cosine_of_1_and_the_same_neighbours() -> None:
    vectors = np.eye(4, dtype=np.float32)
    found = compare(vectors, vectors)
    assert (found.texts, found.cosine_mean, found.cosine_least, found.same_nearest) == (4, 1, 1, 1)


def test_what_strays_most_is_named_and_neighbours_that_change_are_counted() -> None:
    angles = np.array([0.0, 0.1, 0.3, 0.45])
    moved = angles + np.array([0, 0, -0.13, 0])  # its nearest was the last, and is the second; that of the last stays

    def vectors(of: np.ndarray) -> np.ndarray:
        return np.stack([np.cos(of), np.sin(of)], axis=1).astype(np.float32)

    found = compare(vectors(moved), vectors(angles))
    assert found.least_like == 2
    assert found.cosine_least == pytest.approx(np.cos(0.13), abs=1e-6)
    assert found.cosine_mean == pytest.approx((3 + np.cos(0.13)) / 4, abs=1e-6)
    assert found.same_nearest < 1


def test_the_command_compares_lines_and_removes_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_bert_folder(tmp_path / "source")
    import_hugging_face(source, tmp_path / "models" / "tiny", weights="int8")
    text = tmp_path / "text"
    text.write_text("hello water\n\nwheel\na b hello\n")
    command = ["model", "quality", "tiny", "--dir", str(tmp_path / "models"), "--against", str(source)]
    command += ["--text", str(text)]
    assert run([*command, "--json"]) == exit_codes.OK
    said = json.loads(capsys.readouterr().out)
    assert (said["name"], said["texts"]) == ("tiny", 3)
    assert 0.98 < said["cosine_least"] <= said["cosine_mean"] < 1
    assert said["least_like"] in ("hello water", "wheel", "a b hello")
    assert run(command) == exit_codes.OK
    assert "tiny on 3 texts, against source in float32\ncosine, mean       0.99" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny"]


@pytest.mark.parametrize(
    ("content", "said"), [("hello", "fewer than two lines"), ("hello\n" + "a " * 40, "line 2 has 42 tokens")]
)
def test_a_text_that_cannot_be_compared_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    source = write_bert_folder(tmp_path / "source")
    import_hugging_face(source, tmp_path / "models" / "tiny")
    (tmp_path / "text").write_text(content)
    command = ["model", "quality", "tiny", "--dir", str(tmp_path / "models"), "--against", str(source)]
    assert run([*command, "--text", str(tmp_path / "text")]) != exit_codes.OK
    assert said in capsys.readouterr().err


def test_a_source_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import_hugging_face(write_bert_folder(tmp_path / "source"), tmp_path / "models" / "tiny")
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "text").write_text("hello\nwater")
    command = ["model", "quality", "tiny", "--dir", str(tmp_path / "models"), "--against", str(other)]
    assert run([*command, "--text", str(tmp_path / "text")]) != exit_codes.OK
    assert "is neither" in capsys.readouterr().err


@pytest.mark.parametrize("smaller", [{"vocab_size": 12}, {"positions": 6}])
def test_a_source_that_takes_less_text_is_another_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], smaller: dict[str, int]
) -> None:
    """Of as many dimensions, so nothing but the text tells them apart; its graph would fail on it."""
    import_hugging_face(write_bert_folder(tmp_path / "source"), tmp_path / "models" / "tiny")
    shape = dataclasses.replace(SHAPE, **smaller)
    other = write_bert_folder(
        tmp_path / "other",
        weights=make_weights(shape),
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.positions,
    )
    make_tokenizer(WORDS[: shape.vocab_size]).save(str(other / "tokenizer.json"))
    (tmp_path / "text").write_text("wheel\nhello water a b a b")
    command = ["model", "quality", "tiny", "--dir", str(tmp_path / "models"), "--against", str(other)]
    assert run([*command, "--text", str(tmp_path / "text")]) == exit_codes.FAILED
    assert "it is not its source" in capsys.readouterr().err
