"""Small random GGUF files of each family, written by the gguf package."""

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
    family: str = "llama",
    hidden: int = HIDDEN,
    feed_forward: int = FEED_FORWARD,
    kinds: Mapping[str, str] | None = None,
    tied: bool = True,
    metadata: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    extra: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
) -> Path:
    """Write a file whose matrices are of `kind`, or of the kind that `kinds` names for a part of their name.

    `hidden` is also the width of all heads; blocks of 256 want a multiple of it, and of `feed_forward`. `metadata`
    replaces keys (None removes one), `without` leaves tensors out, `extra` adds float32 tensors.
    """
    random = np.random.default_rng(seed)
    vocabulary = (metadata or {}).get("tokenizer.ggml.tokens") or tokens()
    writer = gguf.GGUFWriter(path, (metadata or {}).get("general.architecture", family))
    head_dim = hidden // HEADS
    values: dict[str, Any] = {
        f"{family}.block_count": LAYERS,
        f"{family}.context_length": CONTEXT,
        f"{family}.embedding_length": hidden,
        f"{family}.feed_forward_length": feed_forward,
        f"{family}.attention.head_count": HEADS,
        f"{family}.attention.head_count_kv": KV_HEADS,
        f"{family}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{family}.rope.freq_base": 10_000.0,
        f"{family}.rope.dimension_count": head_dim,
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
    matrices = {"token_embd.weight": (len(vocabulary), hidden)}
    if not tied:
        matrices["output.weight"] = (len(vocabulary), hidden)
    gains, biases = {"output_norm.weight": hidden}, {}
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        gains |= {f"{block}.attn_norm.weight": hidden, f"{block}.ffn_norm.weight": hidden}
        matrices |= {
            f"{block}.attn_q.weight": (HEADS * head_dim, hidden),
            f"{block}.attn_k.weight": (KV_HEADS * head_dim, hidden),
            f"{block}.attn_v.weight": (KV_HEADS * head_dim, hidden),
            f"{block}.attn_output.weight": (hidden, HEADS * head_dim),
            f"{block}.ffn_gate.weight": (feed_forward, hidden),
            f"{block}.ffn_up.weight": (feed_forward, hidden),
            f"{block}.ffn_down.weight": (hidden, feed_forward),
        }
        if family == "qwen2":
            biases |= {f"{block}.attn_{part}.bias": matrices[f"{block}.attn_{part}.weight"][0] for part in "qkv"}
        if family == "qwen3":
            gains |= {f"{block}.attn_q_norm.weight": head_dim, f"{block}.attn_k_norm.weight": head_dim}
    for name, size in gains.items():
        if name not in without:
            writer.add_tensor(name, random.uniform(0.5, 1.5, size).astype(np.float32))
    for name, shape in matrices.items():
        chosen = next((other for part, other in (kinds or {}).items() if part in name), kind)
        if name not in without:
            _add_matrix(writer, name, shape, chosen, random)
    for name, size in biases.items():
        writer.add_tensor(name, random.normal(0, 0.5, size).astype(np.float32))
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


def _add_matrix(
    writer: gguf.GGUFWriter, name: str, shape: tuple[int, int], kind: str, random: np.random.Generator
) -> None:
    type_ = gguf.GGMLQuantizationType[kind]
    if kind in ("Q4_K", "Q6_K"):
        writer.add_tensor(name, random_blocks(kind, shape, random), raw_dtype=type_)
        return
    values = random.normal(0, 0.15, shape).astype(np.float32)
    if kind == "F32":
        writer.add_tensor(name, values)
    elif kind == "F16":
        writer.add_tensor(name, values.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, type_), raw_dtype=type_)


def random_blocks(kind: str, shape: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Raw rows of Q4_K or Q6_K, which the package cannot write: random bits, and scales for weights of about 0.07."""
    blocks = random.integers(0, 256, (shape[0], shape[1] // 256, {"Q4_K": 144, "Q6_K": 210}[kind]), dtype=np.uint8)
    scale = random.uniform(0.5, 1.5, blocks.shape[:2]) * 0.07 / {"Q4_K": 256, "Q6_K": 1370}[kind]
    if kind == "Q4_K":
        blocks[..., 0:2] = scale.astype(np.float16)[..., None].view(np.uint8)
        blocks[..., 2:4] = (7.5 * scale).astype(np.float16)[..., None].view(np.uint8)
    else:
        blocks[..., 208:210] = scale.astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(shape[0], -1)
