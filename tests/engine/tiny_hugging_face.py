"""Small random decoders as Hugging Face folders, with the float32 model that each of them is."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.importers.gguf_vocabulary import PATTERNS
from tests.engine.reference import FloatModel
from tests.engine.tiny_bert import write_safetensors

CORPUS = Path(__file__).parent / "prose.txt"
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SHOWN = "<think>"
PIECES_CONTROL = ["<unk>", "<s>", "</s>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD, LAYERS, VOCABULARY, CONTEXT = 48, 4, 2, 16, 80, 2, 512, 256
EPSILON, BASE = 1e-5, 10_000.0

GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def byte_level_tokenizer(pre: str = "qwen2", vocab_size: int = 500) -> Tokenizer:
    """Byte-level BPE that splits text as `pre` does, control tokens first, then bytes, then what merges make."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERNS[pre]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train([str(CORPUS)], trainer)
    tokenizer.add_tokens([SHOWN])
    return tokenizer


def unigram_tokenizer() -> Tokenizer:
    """Unigram with bytes to fall back on, spaces as ▁."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    special = [*PIECES_CONTROL, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.UnigramTrainer(vocab_size=500, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train([str(CORPUS)], trainer)
    document = orjson.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    document["model"]["byte_fallback"] = True
    steps = [
        {"type": "ByteFallback"},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    ]
    document["decoder"] = {"type": "Sequence", "decoders": steps}
    return Tokenizer.from_str(orjson.dumps(document).decode())


def write_tiny_folder(
    path: Path,
    family: str = "llama",
    *,
    tied: bool = True,
    dtype: str = "float32",
    shards: int = 1,
    config: Mapping[str, Any] | None = None,
    keys: Mapping[str, Any] | None = None,
    tokenizer: Tokenizer | None = None,
) -> FloatModel:
    """Write the folder; `config` replaces keys of config.json (None removes one) and `keys` those of the reference."""
    path.mkdir(parents=True, exist_ok=True)
    table = {
        "model_type": family,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPSILON,
        "rope_theta": BASE,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "eos_token_id": 2,
        **(config or {}),
    }
    (path / "config.json").write_text(json.dumps({key: value for key, value in table.items() if value is not None}))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}))
    (tokenizer or byte_level_tokenizer()).save(str(path / "tokenizer.json"))
    biased = family == "qwen2" or bool((config or {}).get("attention_bias"))
    stored = {name: _stored(value, dtype) for name, value in _tensors(family, tied=tied, biased=biased).items()}
    _write_shards(path, stored, shards)
    exact = {_gguf_name(name): _as_float32(value) for name, value in stored.items()}
    sizes = {
        "block_count": LAYERS,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": EPSILON,
        "rope.freq_base": BASE,
    }
    return FloatModel("qwen2", {**sizes, **(keys or {})}, exact)  # all of them rotate halves


def _tensors(family: str, *, tied: bool, biased: bool) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    matrices = {
        "self_attn.q_proj": (queries, HIDDEN),
        "self_attn.k_proj": (keys, HIDDEN),
        "self_attn.v_proj": (keys, HIDDEN),
        "self_attn.o_proj": (HIDDEN, queries),
        "mlp.gate_proj": (FEED_FORWARD, HIDDEN),
        "mlp.up_proj": (FEED_FORWARD, HIDDEN),
        "mlp.down_proj": (HIDDEN, FEED_FORWARD),
    }
    tensors = {"model.embed_tokens.weight": random.normal(0, 0.15, (VOCABULARY, HIDDEN))}
    if not tied:
        tensors["lm_head.weight"] = random.normal(0, 0.15, (VOCABULARY, HIDDEN))
    gains = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
    if family == "qwen3":
        gains |= {"self_attn.q_norm": HEAD_DIM, "self_attn.k_norm": HEAD_DIM}
    parts = "qkv" if family == "qwen2" else "qkvo" if biased else ""
    for layer in range(LAYERS):
        block = f"model.layers.{layer}"
        tensors |= {f"{block}.{name}.weight": random.normal(0, 0.15, shape) for name, shape in matrices.items()}
        tensors |= {f"{block}.{name}.weight": random.uniform(0.5, 1.5, size) for name, size in gains.items()}
        for part in parts:
            rows = matrices[f"self_attn.{part}_proj"][0]
            tensors[f"{block}.self_attn.{part}_proj.bias"] = random.normal(0, 0.3, rows)
    tensors["model.norm.weight"] = random.uniform(0.5, 1.5, HIDDEN)
    return tensors


def _gguf_name(name: str) -> str:
    name = name.replace("model.layers.", "blk.").replace("model.embed_tokens", "token_embd")
    name = name.replace("model.norm", "output_norm").replace("lm_head", "output")
    for theirs, ours in GGUF_NAMES.items():
        name = name.replace(f".{theirs}.", f".{ours}.")
    return name


def _stored(value: np.ndarray, dtype: str) -> np.ndarray:
    single = value.astype(np.float32)
    return (single.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else single.astype(dtype)


def _as_float32(stored: np.ndarray) -> np.ndarray:
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def _write_shards(path: Path, stored: Mapping[str, np.ndarray], shards: int) -> None:
    if shards == 1:
        write_safetensors(path / "model.safetensors", stored)
        return
    names = list(stored)
    files = {name: f"model-{at % shards + 1:05}-of-{shards:05}.safetensors" for at, name in enumerate(names)}
    for file in set(files.values()):
        write_safetensors(path / file, {name: stored[name] for name in names if files[name] == file})
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
