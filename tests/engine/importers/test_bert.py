"""BERT folders: the graph against a float32 reference, and refusals before any work."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from engine import model_folder
from engine.encoder import Encoder, load_encoder
from engine.importers.bert import import_bert
from engine.model_folder import ModelError
from tests.engine.tiny_bert import (
    SHAPE,
    embed_by_numpy,
    make_tokenizer,
    make_weights,
    write_bert_folder,
    write_safetensors,
)

TEXTS = [[2, 7, 3], [2, 11, 12, 13, 14, 8, 3], [2, 3], [2, *[7, 8, 9, 10] * 5, 11, 3]]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    path = tmp_path_factory.mktemp("bert")
    import_bert(write_bert_folder(path / "source"), path / "tiny", name="tiny")
    return load_encoder(model_folder.read(path / "tiny"), threads=1)


def _run(encoder: Encoder, rows: list[list[int]], padded_to: int, pad_id: int = 0) -> np.ndarray:
    token_ids = np.full((len(rows), padded_to), pad_id, np.int32)
    for padded, row in zip(token_ids, rows, strict=True):
        padded[: len(row)] = row
    return encoder.run(token_ids, np.array([len(row) for row in rows], np.int32))


def test_graph_equals_the_numpy_reference(encoder: Encoder) -> None:
    for ids in TEXTS:
        expected = embed_by_numpy(SHAPE, make_weights(), ids)
        np.testing.assert_allclose(_run(encoder, [ids], len(ids))[0], expected, atol=1e-5)


def test_large_biases_that_normalisation_takes_off_cost_no_digits(tmp_path: Path) -> None:
    weights = make_weights()
    for name, value in weights.items():
        if name.endswith("output.dense.bias"):
            value += 300
    encoder = load_encoder(
        import_bert(write_bert_folder(tmp_path / "source", weights=weights), tmp_path / "tiny"), threads=1
    )
    for ids in TEXTS:
        expected = embed_by_numpy(SHAPE, make_weights(), ids)  # without them, as float32 has no digits for them either
        np.testing.assert_allclose(_run(encoder, [ids], len(ids))[0], expected, atol=1e-5)


def test_M05_padding_and_neighbours_change_nothing(encoder: Encoder) -> None:
    together = _run(encoder, TEXTS, SHAPE.positions, pad_id=9)
    for ids, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(vector, _run(encoder, [ids], len(ids))[0], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


def test_what_runs_has_none_of_the_slow_kernels(tmp_path: Path) -> None:
    """ONNX Runtime fuses what it knows: had a residual or a bias an Add of its own, its fused kernels would be back."""
    folder = import_bert(write_bert_folder(tmp_path / "source"), tmp_path / "tiny", name="tiny")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(str(folder.file(model_folder.GRAPH)), options, providers=["CPUExecutionProvider"])
    runs = Counter(node.op_type for node in onnx.load(tmp_path / "optimised.onnx", load_external_data=False).graph.node)
    assert runs["Gemm"] == 3 * SHAPE.layers
    assert runs["LayerNormalization"] == 2 * SHAPE.layers + 1
    assert not {"SkipLayerNormalization", "BiasGelu", "Transpose"} & set(runs)


def test_folder_says_what_the_model_is(tmp_path: Path) -> None:
    source = write_bert_folder(tmp_path / "source")
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    (source / "README.md").write_text("---\nlicense: apache-2.0\ntags: [a]\n---\n# Tiny\n")
    import_bert(source, tmp_path / "tiny", name="tiny")
    manifest = model_folder.read(tmp_path / "tiny").manifest
    assert manifest.kind == "embedding"
    assert manifest.embedding is not None
    assert (manifest.embedding.dimensions, manifest.embedding.max_tokens) == (16, 20)
    assert manifest.tokenizer.special["[SEP]"] == 3
    assert manifest.license == "apache-2.0"


@pytest.mark.parametrize("card", ["", "# Tiny", "---\nlicense: [", "---\n- license\n---\n", "---\nlicense: 1\n---\n"])
def test_a_card_that_names_no_license_is_no_obstacle(tmp_path: Path, card: str) -> None:
    source = write_bert_folder(tmp_path / "source")
    (source / "README.md").write_text(card)
    assert import_bert(source, tmp_path / "tiny").manifest.license is None


def test_names_may_begin_with_bert(tmp_path: Path) -> None:
    weights = {f"bert.{name}": value for name, value in make_weights().items()}
    import_bert(write_bert_folder(tmp_path / "source", weights=weights), tmp_path / "tiny", name="tiny")
    encoder = load_encoder(model_folder.read(tmp_path / "tiny"), threads=1)
    np.testing.assert_allclose(
        _run(encoder, [[2, 7, 3]], 3)[0], embed_by_numpy(SHAPE, make_weights(), [2, 7, 3]), atol=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"model_type": None}, "model_type is None"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"num_attention_heads": 3}, "not a multiple"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers is '2'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_hidden_layers": 3}, r"no floating-point tensor encoder\.layer\.2"),
        ({"vocab_size": 16}, "word_embeddings.weight has shape"),
        ({"vocab_size": 10}, "belongs to another model"),
        ({"max_position_embeddings": 2}, "max_position_embeddings is 2"),  # reading texts for eight bits had no end
        ({"pad_token_id": -1}, "pad_token_id is -1"),
        ({"pad_token_id": 15}, "pad_token_id is 15"),
        ({"layer_norm_eps": "small"}, "small"),
        ({"matryoshka_dimensions": [4, 17]}, r"matryoshka_dimensions is \[4, 17\], whole numbers from 1 to 16"),
    ],
)
def test_refused_before_any_work(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    source = write_bert_folder(tmp_path / "source", **changes)
    with pytest.raises(ModelError, match=message):
        import_bert(source, tmp_path / "models" / "tiny", name="tiny")
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_missing_and_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    source = write_bert_folder(tmp_path / "source")
    (source / name).write_bytes(b"[")
    with pytest.raises(ModelError, match=name):
        import_bert(source, tmp_path / "tiny", name="tiny")
    (source / name).unlink()
    with pytest.raises(ModelError, match=name):
        import_bert(source, tmp_path / "tiny", name="tiny")
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True}, "Dense"),
        (["Transformer", "Pooling"], {"pooling_mode_cls_token": True}, "pooling_mode_cls_token"),
    ],
)
def test_other_sentence_pipelines_are_refused(
    tmp_path: Path, modules: list[str], pooling: dict[str, bool], message: str
) -> None:
    source = write_bert_folder(tmp_path / "source")
    (source / "modules.json").write_text(json.dumps([{"type": f"sentence_transformers.models.{m}"} for m in modules]))
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    with pytest.raises(ModelError, match=message):
        import_bert(source, tmp_path / "tiny", name="tiny")


def test_tokenizer_must_frame_a_text(tmp_path: Path) -> None:
    source = write_bert_folder(tmp_path / "source")
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    (source / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}))
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        import_bert(source, tmp_path / "tiny", name="tiny")


def test_half_precision_weights_are_read(tmp_path: Path) -> None:
    source = write_bert_folder(tmp_path / "source")
    half = {name: value.astype(np.float16) for name, value in make_weights().items()}
    write_safetensors(source / "model.safetensors", half)
    import_bert(source, tmp_path / "tiny", name="tiny")
    encoder = load_encoder(model_folder.read(tmp_path / "tiny"), threads=1)
    expected = embed_by_numpy(SHAPE, {name: value.astype(np.float32) for name, value in half.items()}, TEXTS[1])
    np.testing.assert_allclose(_run(encoder, [TEXTS[1]], len(TEXTS[1]))[0], expected, atol=1e-5)


def test_the_made_up_tokenizer_frames() -> None:
    assert make_tokenizer().encode("hello").ids[:3] == [2, 11, 3]
