"""Hugging Face folders of decoders compute what a float32 forward pass does, and what cannot is refused before work."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import model_folder
from engine.importers.decode_weights import Precision
from engine.importers.hugging_face import import_hugging_face
from engine.llm.decoder import RowWork, load_decoder
from engine.model_folder import ModelError
from tests.engine.reference import FloatModel, mean_kl
from tests.engine.tiny_hugging_face import CONTEXT, TEMPLATE, write_tiny_folder

PROMPT = [1, 70, 80, 90, 100, 110, 256, 264, 120, 5, 6, 7, 200, 33, 44]
EXACT, EIGHT_BITS = 1e-6, 3e-3


def divergence(model: FloatModel, source: Path, folder: Path, weights: Precision = "exact") -> float:
    """The mean KL of the imported model from the reference, over every position of the prompt."""
    decoder = load_decoder(import_hugging_face(source, folder, weights=weights), slots=1, threads=1)
    (rows,) = decoder.run([RowWork(0, PROMPT, 0, len(PROMPT))])
    return mean_kl(model.logits(PROMPT), np.stack([row.whole() for row in rows]))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_each_family_computes_what_it_should(tmp_path: Path, family: str, tied: bool) -> None:
    model = write_tiny_folder(tmp_path / "source", family, tied=tied)
    assert divergence(model, tmp_path / "source", tmp_path / "tiny") < EXACT


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_in_eight_bits_each_family_computes_nearly_the_same(tmp_path: Path, family: str) -> None:
    config = {"attention_bias": True} if family == "llama" else None  # a bias of what is written into the residual, too
    model = write_tiny_folder(tmp_path / "source", family, config=config)
    assert divergence(model, tmp_path / "source", tmp_path / "tiny", "int8") < EIGHT_BITS


@pytest.mark.parametrize(("dtype", "shards"), [("float16", 1), ("bfloat16", 1), ("bfloat16", 3)])
def test_halves_and_shards_are_the_same_model(tmp_path: Path, dtype: str, shards: int) -> None:
    model = write_tiny_folder(tmp_path / "source", dtype=dtype, shards=shards)
    assert divergence(model, tmp_path / "source", tmp_path / "tiny") < EXACT


def test_a_llama_may_have_biases(tmp_path: Path) -> None:
    model = write_tiny_folder(tmp_path / "source", config={"attention_bias": True})
    assert divergence(model, tmp_path / "source", tmp_path / "tiny") < EXACT


LLAMA_3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        ({"rope_type": "linear", "factor": 3.0}, CONTEXT),
        ({"rope_type": "llama3", **LLAMA_3}, CONTEXT),
        ({"type": "yarn", **YARN}, CONTEXT),
        ({"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}, 512),
    ],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rotary_scaling_is_that_of_the_papers(tmp_path: Path, scaling: dict[str, Any], context: int, key: str) -> None:
    keys = {
        "rope.scaling.type": scaling.get("type", scaling.get("rope_type")),
        "rope.scaling.factor": scaling["factor"],
        "rope.scaling.original_context_length": 64,
        "rope.scaling.low": 1.0,
        "rope.scaling.high": 4.0,
    }
    model = write_tiny_folder(tmp_path / "source", config={key: scaling}, keys=keys)
    assert divergence(model, tmp_path / "source", tmp_path / "tiny") < EXACT
    assert model_folder.read(tmp_path / "tiny").chat.context == context


def test_the_folder_says_what_the_files_said(tmp_path: Path) -> None:
    write_tiny_folder(tmp_path / "source", "mistral", config={"sliding_window": 100})
    (tmp_path / "source" / "README.md").write_text("---\nlicense: mit\n---\n")
    (tmp_path / "source" / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    folder = import_hugging_face(tmp_path / "source", tmp_path / "tiny", name="other")
    assert (folder.name, folder.manifest.architecture, folder.manifest.license) == ("other", "mistral", "mit")
    assert folder.chat.context == 100  # no text is longer than the window, which is not computed
    assert folder.chat.eos_ids == (0, 1, 2)
    assert folder.file("chat_template.jinja").read_text() == TEMPLATE


def test_a_template_in_a_file_of_its_own_comes_first(tmp_path: Path) -> None:
    write_tiny_folder(tmp_path / "source")
    (tmp_path / "source" / "chat_template.jinja").write_text("mine")
    folder = import_hugging_face(tmp_path / "source", tmp_path / "tiny")
    assert folder.file("chat_template.jinja").read_text() == "mine"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "gemma"}, "model_type is 'gemma'; supported: llama"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"num_key_value_heads": 3}, "do not fit together"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None"),
        ({"hidden_size": 1 << 40}, "hidden_size is 1099511627776"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps is 'x'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "type 'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is None"),
        ({"rope_scaling": 4}, "the rotary scaling is 4"),
        ({"rope_scaling": {"type": "yarn", **YARN, "mscale": 0.7}}, "mscale is 0.7"),
        ({"rope_scaling": {"type": "llama3", **LLAMA_3, "low_freq_factor": 4.0}}, "is not above"),
        ({"vocab_size": 100}, "has ids beyond the model's 100"),
        ({"num_hidden_layers": 3}, r"lacks 9 tensors, blk\.2\."),
        ({"intermediate_size": 96}, r"has shape \(80, 48\) and should have \(96, 48\)"),
        ({"tie_word_embeddings": False}, r"lacks lm_head\.weight"),
        ({"model_type": "qwen2"}, r"attn_k\.bias"),
    ],
)
def test_what_cannot_be_imported_exactly_is_refused_before_any_work(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    write_tiny_folder(tmp_path / "source", config={key: value for key, value in config.items() if key != "model_type"})
    table = json.loads((tmp_path / "source" / "config.json").read_text())
    (tmp_path / "source" / "config.json").write_text(json.dumps({**table, **config}))
    with pytest.raises(ModelError, match=message) as refusal:
        import_hugging_face(tmp_path / "source", tmp_path / "models" / "tiny")
    assert str(tmp_path / "source") in str(refusal.value)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "tokenizer_config.json"])
def test_missing_and_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    write_tiny_folder(tmp_path / "source")
    (tmp_path / "source" / name).write_bytes(b"[")
    with pytest.raises(ModelError, match=name):
        import_hugging_face(tmp_path / "source", tmp_path / "tiny")
    (tmp_path / "source" / name).unlink()
    if name != "tokenizer_config.json":
        with pytest.raises(ModelError, match=name):
            import_hugging_face(tmp_path / "source", tmp_path / "tiny")


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": {"a": "../../x.safetensors"}}])
def test_a_hostile_index_of_shards_is_refused(tmp_path: Path, index: dict[str, Any]) -> None:
    write_tiny_folder(tmp_path / "source")
    (tmp_path / "source" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"index\.json.*fetch"):
        import_hugging_face(tmp_path / "source", tmp_path / "tiny")
