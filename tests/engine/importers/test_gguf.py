"""GGUF files become folders that compute what the file says, and files that cannot are refused before any work."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engine import model_folder
from engine.importers import chat_folder
from engine.importers.decode_weights import Precision
from engine.importers.gguf import import_gguf
from engine.llm.decoder import RowWork, load_decoder
from engine.model_folder import ModelError
from tests.engine import tiny_gguf
from tests.engine.reference import Reference, mean_kl
from tests.engine.tiny_gguf import CONTEXT, HEAD_DIM, write_tiny_gguf

PROMPT = [1, 70, 80, 90, 100, 110, 256, 264, 120, 5, 6, 7, 200, 33, 44]

# Activations are rounded to eight bits in blocks of 32 where weights are quantised, and nowhere else.
EXACT, ROUNDED = 1e-6, 2e-3
EIGHT_BITS = 3e-3  # rounded for the text that was read, of which the prompt has little


def divergence(file: Path, folder: Path, weights: Precision = "exact") -> float:
    """The mean KL of the imported model from the reference, over every position of the prompt."""
    decoder = load_decoder(import_gguf(file, folder, weights=weights), slots=1, threads=1)
    logits = []
    for past, token in enumerate(PROMPT):
        ((row,),) = decoder.run([RowWork(0, [token], past, 1)])
        logits.append(row.whole())
    return mean_kl(Reference(gguf.GGUFReader(file)).logits(PROMPT), np.stack(logits))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_each_type_computes_the_dequantised_model(tmp_path: Path, kind: str, tied: bool) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", kind, tied=tied)
    assert divergence(file, tmp_path / "tiny") < (ROUNDED if kind.startswith("Q") else EXACT)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize(("kind", "bound"), [("F32", EXACT), ("Q4_1", ROUNDED)])
def test_each_family_computes_what_it_should(tmp_path: Path, family: str, kind: str, bound: float) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", kind, family=family)
    assert divergence(file, tmp_path / "tiny") < bound
    assert model_folder.read(tmp_path / "tiny").manifest.architecture == family


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["F32", "Q4_1"])
def test_in_eight_bits_each_family_computes_nearly_the_same(tmp_path: Path, family: str, kind: str, tied: bool) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", kind, family=family, tied=tied)
    assert divergence(file, tmp_path / "tiny", "int8") < EIGHT_BITS


def test_eight_bits_without_a_text_to_be_rounded_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_folder, "CALIBRATION_TEXT", "")
    assert divergence(write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "tiny", "int8") < EIGHT_BITS


def test_eight_bits_where_every_token_is_a_single_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_gguf, "MERGES", [])
    monkeypatch.setattr(chat_folder, "CALIBRATION_TEXT", "30 °C " * 40)  # more bytes than characters
    folder = import_gguf(write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "tiny", weights="int8")
    assert folder.chat.vocab_size == 256


@pytest.mark.parametrize("kinds", [{}, {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q6_K"}])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_blocks_of_256_compute_the_dequantised_model(tmp_path: Path, family: str, kinds: dict[str, str]) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", "Q4_K", family=family, hidden=256, feed_forward=256, kinds=kinds)
    assert divergence(file, tmp_path / "tiny") < ROUNDED


def test_projections_of_one_input_may_differ_in_type(tmp_path: Path) -> None:
    kinds = {"attn_v": "Q8_0", "ffn_up": "F16", "token_embd": "Q8_0", "ffn_down": "Q4_1"}
    file = write_tiny_gguf(tmp_path / "tiny.gguf", "Q4_0", kinds=kinds)
    assert divergence(file, tmp_path / "tiny") < ROUNDED


def test_rotary_frequencies_follow_the_files_factors(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, HEAD_DIM // 2, dtype=np.float32)
    file = write_tiny_gguf(tmp_path / "tiny.gguf", "F32", extra={"rope_freqs.weight": factors})
    assert divergence(file, tmp_path / "tiny") < EXACT


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rotary_scaling_is_that_of_the_papers(tmp_path: Path, family: str, kind: str) -> None:
    keys = {"type": kind, "factor": 4.0, "original_context_length": 16}
    metadata = {f"{family}.rope.scaling.{key}": value for key, value in keys.items()}
    file = write_tiny_gguf(tmp_path / "tiny.gguf", "F32", family=family, metadata=metadata)
    assert divergence(file, tmp_path / "tiny") < EXACT


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaled_to_twice_the_trained_context_every_step_is_a_number(tmp_path: Path, kind: str) -> None:
    keys = {"type": kind, "factor": 2.0, "original_context_length": CONTEXT}
    metadata = {f"llama.rope.scaling.{key}": value for key, value in keys.items()}
    file = write_tiny_gguf(tmp_path / "tiny.gguf", metadata={**metadata, "llama.context_length": 2 * CONTEXT})
    decoder = load_decoder(import_gguf(file, tmp_path / "tiny"), slots=1, threads=1)
    tokens = [3 + at % 200 for at in range(2 * CONTEXT)]
    reference = Reference(gguf.GGUFReader(file)).logits(tokens)
    for start in (0, CONTEXT):
        (rows,) = decoder.run([RowWork(0, tokens[start : start + CONTEXT], start, CONTEXT)])
        logits = np.stack([row.whole() for row in rows])
        assert np.isfinite(logits).all()
        assert mean_kl(reference[start : start + CONTEXT], logits) < ROUNDED


def test_the_folder_says_what_the_file_said(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    folder = import_gguf(file, tmp_path / "tiny", progress=lambda *step: seen.append(step))
    assert folder.name == "tiny"
    assert folder.chat.context == CONTEXT
    assert folder.chat.eos_ids == (0, 2)
    assert folder.file("chat_template.jinja").read_text().startswith("{% for m in messages %}")
    stages = [stage for stage, _, _ in seen]
    assert stages == sorted(stages, key=["read", "hash", "weights", "write"].index)
    assert all(done == total for stage, done, total in seen[-1:] if stage == "write")
    weights = [(done, total) for stage, done, total in seen if stage == "weights"]
    assert weights == sorted(weights)
    assert weights[-1][0] == weights[-1][1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": {"general.architecture": "gemma"}}, "architecture gemma is not supported"),
        ({"metadata": {"llama.context_length": None}}, "llama.context_length is None"),
        ({"metadata": {"llama.block_count": 1 << 30}}, "llama.block_count is 1073741824"),
        ({"metadata": {"llama.rope.freq_base": -1.0}}, "llama.rope.freq_base is -1.0"),
        ({"metadata": {"llama.expert_count": 8}}, "mixtures of experts"),
        ({"metadata": {"llama.rope.scaling.type": "longrope"}}, "scaling of type longrope"),
        ({"metadata": {"llama.attention.head_count_kv": 3}}, "4 heads cannot share 3"),
        ({"metadata": {"llama.rope.dimension_count": 8}}, "rotated in part"),
        ({"metadata": {"llama.attention.head_count": [4, 2]}}, r"head_count is \[4, 2\], one number"),
        ({"metadata": {"tokenizer.ggml.tokens": None}}, "has no vocabulary"),
        ({"metadata": {"tokenizer.ggml.model": "llama"}}, "lacks the scores"),
        ({"metadata": {"tokenizer.ggml.model": "t5"}}, "tokenizer t5/smollm is not supported"),
        ({"metadata": {"tokenizer.ggml.merges": ["l l", "h e"]}}, "breaks the order"),
        ({"metadata": {"tokenizer.ggml.merges": ["日 本"]}}, r"merge 0 \('日 本'\)"),
        ({"metadata": {"tokenizer.ggml.token_type": [1, 1, 3]}}, "the types of 3"),
        ({"without": ("blk.1.ffn_up.weight",)}, r"lacks 1 tensors, blk\.1\.ffn_up\.weight"),
        ({"extra": {"blk.0.attn_q.bias": np.zeros(64, np.float32)}}, r"blk\.0\.attn_q\.bias, which"),
        ({"kinds": {"ffn_up": "TQ2_0"}, "hidden": 256}, r"blk\.0\.ffn_up\.weight is of type TQ2_0; supported"),
        ({"metadata": {"llama.feed_forward_length": 128}}, r"has shape \(96, 64\) and should have \(128, 64\)"),
    ],
)
def test_what_cannot_be_imported_exactly_is_refused_before_any_work(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", **changes)
    with pytest.raises(ModelError, match=message) as refusal:
        import_gguf(file, tmp_path / "models" / "tiny")
    assert str(file) in str(refusal.value)
    assert not (tmp_path / "models").exists()


def test_a_file_that_is_cut_short_or_no_gguf_is_refused(tmp_path: Path) -> None:
    whole = write_tiny_gguf(tmp_path / "tiny.gguf").read_bytes()
    for size in (0, 3, 100, 5000, len(whole) - 1):
        file = tmp_path / "cut.gguf"
        file.write_bytes(whole[:size])
        with pytest.raises(ModelError, match="cut short"):
            import_gguf(file, tmp_path / "tiny")
    with pytest.raises(ModelError, match="No such file"):
        import_gguf(tmp_path / "absent.gguf", tmp_path / "tiny")


@pytest.mark.parametrize(
    "text",
    [
        struct.pack("<IIQ", 9, 0, 1 << 62),
        struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 3000,
    ],
    ids=["an array of 2^62 bytes", "arrays in arrays"],
)
def test_a_hostile_header_is_refused_at_once(tmp_path: Path, text: bytes) -> None:
    key = b"tokenizer.ggml.scores"
    file = tmp_path / "hostile.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key + text)
    with pytest.raises(ModelError, match="cut short"):
        import_gguf(file, tmp_path / "tiny")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ggml.eos_token_id", "x"),
        ("ggml.eos_token_id", 10**6),
        ("ggml.tokens", [1, 2]),
        ("ggml.merges", 5),
        ("ggml.merges", [5]),
        ("ggml.token_type", 3),
        ("ggml.pre", ["a"]),
        ("chat_template", 7),
        ("chat_template", ["a"]),
    ],
)
def test_metadata_of_another_type_or_out_of_range_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", metadata={f"tokenizer.{key}": value})
    with pytest.raises(ModelError, match="fetch the file again"):
        import_gguf(file, tmp_path / "tiny")


def test_a_license_that_is_no_text_is_left_out(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", metadata={"general.license": 5})
    assert import_gguf(file, tmp_path / "tiny").manifest.license is None
