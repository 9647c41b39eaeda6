"""Small random GGUF files of the llama architecture, written by the gguf package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD, LAYERS, CONTEXT = 64, 4, 2, 16, 96, 2, 256
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld"]
ABSENT_BYTES = (0x00, 0xC0, 0xFF)


def spelt_bytes() -> dict[int, str]:
    """GPT-2's printable character for each byte."""
    spelt, moved = {}, 0
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or (0xA1 <= byte <= 0xFF and byte != 0xAD):
            spelt[byte] = chr(byte)
        else:
            spelt[byte] = chr(0x100 + moved)
            moved += 1
    return spelt


def tokens() -> list[str]:
    """Control tokens, then single bytes, then what the merges make."""
    single = [character for byte, character in spelt_bytes().items() if byte not in ABSENT_BYTES]
    return [*SPECIAL, *single, *(merge.replace(" ", "") for merge in MERGES)]


def write_tiny_gguf(
    path: Path,
    kind: str = "Q4_1",
    *,
    kinds: Mapping[str, str] | None = None,
    tied: bool = True,
    metadata: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    extra: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
) -> Path:
    """Write a file whose matrices are of `kind`, or of the kind that `kinds` names for a part of their name.

    `metadata` replaces keys (None removes one), `without` leaves tensors out, `extra` adds float32 tensors.
    """
    random = np.random.default_rng(seed)
    vocabulary = tokens()
    architecture = (metadata or {}).get("general.architecture", "llama")
    writer = gguf.GGUFWriter(path, architecture)
    values: dict[str, Any] = {
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10_000.0,
        "llama.rope.dimension_count": HEAD_DIM,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(vocabulary) - len(SPECIAL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
    }
    values.update({key: value for key, value in (metadata or {}).items() if key != "general.architecture"})
    for key, value in values.items():
        _add(writer, key, value)
    matrices = {"token_embd.weight": (len(vocabulary), HIDDEN)}
    if not tied:
        matrices["output.weight"] = (len(vocabulary), HIDDEN)
    vectors = ["output_norm.weight"]
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        vectors += [f"{block}.attn_norm.weight", f"{block}.ffn_norm.weight"]
        matrices |= {
            f"{block}.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{block}.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{block}.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{block}.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{block}.ffn_gate.weight": (FEED_FORWARD, HIDDEN),
            f"{block}.ffn_up.weight": (FEED_FORWARD, HIDDEN),
            f"{block}.ffn_down.weight": (HIDDEN, FEED_FORWARD),
        }
    for name in vectors:
        if name not in without:
            writer.add_tensor(name, random.uniform(0.5, 1.5, HIDDEN).astype(np.float32))
    for name, shape in matrices.items():
        values_ = random.normal(0, 0.15, shape).astype(np.float32)
        chosen = next((other for part, other in (kinds or {}).items() if part in name), kind)
        if name not in without:
            _add_matrix(writer, name, values_, chosen)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            pass
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _add_matrix(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: str) -> None:
    if kind == "F32":
        writer.add_tensor(name, values)
    elif kind == "F16":
        writer.add_tensor(name, values.astype(np.float16))
    else:
        type_ = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(values, type_), raw_dtype=type_)
