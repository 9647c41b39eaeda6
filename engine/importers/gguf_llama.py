"""What a GGUF file of the llama architecture must say and hold: sizes, tensors, rotary tables. Reads no weights."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.model_folder import ModelError

MAX_SIZE = 1 << 20  # of any of a model's dimensions; a file that says more is damaged


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The sizes of a llama model and how its heads are rotated."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocab_size: int
    context: int
    norm_epsilon: float
    rotary_base: float
    rotary_scale: float  # positions are divided by it

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The name and shape (rows, columns) of every tensor that the model needs."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (self.vocab_size, self.hidden),
            "output_norm.weight": (self.hidden,),
        }
        for layer in range(self.layers):
            shapes |= {
                f"blk.{layer}.attn_norm.weight": (self.hidden,),
                f"blk.{layer}.attn_q.weight": (queries, self.hidden),
                f"blk.{layer}.attn_k.weight": (keys, self.hidden),
                f"blk.{layer}.attn_v.weight": (keys, self.hidden),
                f"blk.{layer}.attn_output.weight": (self.hidden, queries),
                f"blk.{layer}.ffn_norm.weight": (self.hidden,),
                f"blk.{layer}.ffn_gate.weight": (self.feed_forward, self.hidden),
                f"blk.{layer}.ffn_up.weight": (self.feed_forward, self.hidden),
                f"blk.{layer}.ffn_down.weight": (self.hidden, self.feed_forward),
            }
        return shapes

    def optional_tensors(self) -> dict[str, tuple[int, ...]]:
        """Tensors that change the model when they are there: an untied head, and factors on the rotary frequencies."""
        return {"output.weight": (self.vocab_size, self.hidden), "rope_freqs.weight": (self.head_dim // 2,)}


def read_hyperparameters(metadata: Mapping[str, Any]) -> Hyperparameters:
    """Read `llama.*` and count the vocabulary. Raises ModelError for what is missing and what would come out wrong."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"the architecture {architecture} is not supported; supported: llama")
    if not isinstance(metadata.get("tokenizer.ggml.tokens"), list):
        raise ModelError("the file has no vocabulary; choose one that includes the tokenizer")
    if metadata.get("llama.expert_count"):
        raise ModelError("mixtures of experts are not supported; choose a dense model")
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise ModelError(f"rotary scaling of type {scaling} is not supported; supported: none, linear")
    hidden, heads = _integer(metadata, "embedding_length"), _integer(metadata, "attention.head_count")
    head_dim = _integer(metadata, "attention.key_length", hidden // heads)
    rotated = _integer(metadata, "rope.dimension_count", head_dim)
    if {rotated, _integer(metadata, "attention.value_length", head_dim)} != {head_dim}:
        raise ModelError("heads that are rotated in part or differ in size are not supported")
    return Hyperparameters(
        layers=_integer(metadata, "block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=_integer(metadata, "attention.head_count_kv", heads),
        head_dim=head_dim,
        feed_forward=_integer(metadata, "feed_forward_length"),
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        context=_integer(metadata, "context_length"),
        norm_epsilon=_real(metadata, "attention.layer_norm_rms_epsilon"),
        rotary_base=_real(metadata, "rope.freq_base", 10_000.0),
        rotary_scale=_real(metadata, "rope.scaling.factor", 1.0) if scaling == "linear" else 1.0,
    )


def _integer(metadata: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = metadata.get(f"llama.{key}", default)
    if isinstance(value, int) and 1 <= value <= MAX_SIZE:
        return value
    raise ModelError(
        f"the key llama.{key} is {value}, one number from 1 to {MAX_SIZE} is supported; fetch the file again"
    )


def _real(metadata: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = metadata.get(f"llama.{key}", default)
    if isinstance(value, float) and 0 < value < math.inf:
        return value
    raise ModelError(f"the key llama.{key} is {value} and should be a number above 0; fetch the file again")


def rotary_tables(
    model: Hyperparameters, positions: int, factors: NDArray[np.float32] | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines, float32 [positions, head_dim/2]; `factors` [head_dim/2] divide the frequencies (RoFormer)."""
    exponents = np.arange(0, model.head_dim, 2, dtype=np.float64) / model.head_dim
    frequencies = model.rotary_base**-exponents / model.rotary_scale
    if factors is not None:
        frequencies /= factors
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
