"""Text encoders in eight bits: near to float32, each text for itself, and by the kernels that are meant."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from engine import model_folder, session
from engine.encoder import Encoder, load_encoder
from engine.importers import bert_reading, bert_rounded
from engine.importers.bert import import_bert
from engine.importers.hugging_face import import_hugging_face
from engine.model_folder import ModelError, ModelFolder
from tests.engine.tiny_bert import SHAPE, make_tokenizer, make_weights, write_bert_folder

TEXTS = [[2, 7, 3], [2, 11, 12, 13, 14, 8, 3], [2, 3], [2, *[7, 8, 9, 10] * 5, 11, 3]]
LARGE = 5  # a column that is much larger than others, as trained encoders have them


def uneven_weights() -> dict[str, NDArray[np.float32]]:
    weights = make_weights()
    for name, value in weights.items():
        if name.endswith("LayerNorm.weight") and not name.startswith(f"encoder.layer.{SHAPE.layers - 1}.output"):
            value[LARGE] *= 8
        elif name.endswith(("query.weight", "key.weight", "value.weight", "intermediate.dense.weight")):
            value[:, LARGE] /= 8
    return weights


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert_folder(tmp_path_factory.mktemp("rounded") / "source", weights=uneven_weights())


@pytest.fixture(scope="module")
def rounded(source: Path) -> ModelFolder:
    return import_hugging_face(source, source.parent / "rounded", weights="int8")


def run(encoder: Encoder, rows: list[list[int]]) -> NDArray[np.float32]:
    token_ids = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for padded, row in zip(token_ids, rows, strict=True):
        padded[: len(row)] = row
    return encoder.run(token_ids, np.array([len(row) for row in rows], np.int32))


def cosines(folder: ModelFolder, exact: ModelFolder, texts: list[list[int]] = TEXTS) -> NDArray[np.float32]:
    vectors, expected = (run(load_encoder(each, threads=1), texts) for each in (folder, exact))
    found: NDArray[np.float32] = (vectors * expected).sum(axis=1)
    return found


def test_vectors_are_near_to_those_in_float32(source: Path, rounded: ModelFolder) -> None:
    exact = import_bert(source, source.parent / "exact")
    assert 0.995 < cosines(rounded, exact).min() < 0.99999
    assert (exact.embedding.weights, rounded.embedding.weights) == ("float32", "int8")


def test_biases_that_normalisation_takes_off_are_not_rounded_with_the_rest(source: Path, tmp_path: Path) -> None:
    weights = uneven_weights()
    for name, value in weights.items():
        if name.endswith("output.dense.bias"):
            value += 30
    folder = write_bert_folder(tmp_path / "source", weights=weights)
    rounded, exact = (import_bert(folder, tmp_path / name, in_eight_bits=name == "int8") for name in ("int8", "exact"))
    assert cosines(rounded, exact).min() > 0.995


def test_uneven_columns_are_made_even_before_they_are_rounded(
    source: Path, rounded: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = import_bert(source, source.parent / "even")
    monkeypatch.setattr(bert_rounded, "SHARE", 0.0)
    plain = import_bert(source, source.parent / "plain", in_eight_bits=True)
    random = np.random.default_rng(3)
    texts = [[2, *random.integers(5, SHAPE.vocab_size, length).tolist(), 3] for length in random.integers(1, 22, 100)]
    assert (1 - cosines(rounded, exact, texts)).mean() < (1 - cosines(plain, exact, texts)).mean() / 2


def test_M05_company_changes_nothing_in_eight_bits(rounded: ModelFolder) -> None:
    """Tokens are rounded by their own largest number, not by the batch's."""
    encoder = load_encoder(rounded, threads=1)
    alone = np.concatenate([run(encoder, [row]) for row in TEXTS])
    for rows in (TEXTS, TEXTS[::-1], TEXTS * 5):
        found = run(encoder, rows)
        expected = {tuple(row): vector for row, vector in zip(TEXTS, alone, strict=True)}
        np.testing.assert_allclose(found, [expected[tuple(row)] for row in rows], atol=1e-6)


def test_what_runs_is_integers_and_the_quick_kernels(rounded: ModelFolder, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    graph = str(rounded.file(model_folder.GRAPH))
    onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    runs = Counter(node.op_type for node in onnx.load(tmp_path / "optimised.onnx", load_external_data=False).graph.node)
    assert runs["MatMulIntegerToFloat"] == 4 * SHAPE.layers
    assert runs["Gemm"] == SHAPE.layers  # of the few columns that stay float32
    assert not {"SkipLayerNormalization", "BiasGelu", "DynamicQuantizeMatMul"} & set(runs)


def test_the_way_without_vnni_gives_the_same(rounded: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slower and just as exact; that the other overflows there is ONNX Runtime's word."""
    expected = run(load_encoder(rounded, threads=1), TEXTS)
    monkeypatch.setattr(session, "_sums_exactly", lambda: False)
    np.testing.assert_allclose(run(load_encoder(rounded, threads=1), TEXTS), expected, atol=1e-6)


def test_what_is_read_meanwhile_are_texts_of_many_lengths() -> None:
    rows = list(bert_reading.calibration_rows(make_tokenizer(), max_tokens=24))
    assert all((row[0], row[-1]) == (2, 3) and 3 <= len(row) <= 24 for row in rows)
    assert len({len(row) for row in rows}) > 5
    assert any(len(one) > len(other) for one, other in pairwise(rows))


def test_nothing_but_the_model_is_left(rounded: ModelFolder) -> None:
    names = {path.name for path in rounded.path.iterdir()}
    assert names == {"model.onnx", "model.yaml", "tokenizer.json", "weights.bin"}


def test_an_encoder_keeps_no_keys_and_values(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="import it without --kv-cache"):
        import_hugging_face(source, tmp_path / "tiny", weights="int8", kv_cache="int8")
