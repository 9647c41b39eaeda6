"""What the metadata of a GGUF file say of a model: its family, its sizes and how its heads are rotated.

Raises ModelError for what is missing, damaged, or would come out wrong. Reads no weights.
"""

import math
from collections.abc import Mapping
from typing import Any

from engine.importers.family import MAX_SIZE, Hyperparameters
from engine.importers.rope import Linear, Rotary, Scaling, Yarn
from engine.model_folder import ModelError

FAMILIES = ("llama", "qwen2", "qwen3")  # what llama.cpp calls them; a mistral model is a llama there

_QUERIES_KEYS_VALUES = ("attn_q", "attn_k", "attn_v")


def read_hyperparameters(metadata: Mapping[str, Any]) -> Hyperparameters:
    """Read the family's keys and count the vocabulary. Raises ModelError."""
    family = metadata.get("general.architecture")
    if family not in FAMILIES:
        raise ModelError(f"the architecture {family} is not supported; supported: {', '.join(FAMILIES)}")
    if not isinstance(metadata.get("tokenizer.ggml.tokens"), list):
        raise ModelError("the file has no vocabulary; choose one that includes the tokenizer")
    if metadata.get(f"{family}.expert_count"):
        raise ModelError("mixtures of experts are not supported; choose a dense model")
    keys = _Keys(family, metadata)
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    rotated = keys.integer("rope.dimension_count", head_dim)
    if {rotated, keys.integer("attention.value_length", head_dim)} != {head_dim} or head_dim % 2:
        raise ModelError("heads that are rotated in part or differ in size are not supported")
    kv_heads = keys.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise ModelError(f"{heads} heads cannot share {kv_heads} heads of keys and values; fetch the file again")
    context = keys.integer("context_length")
    return Hyperparameters(
        family=family,
        layers=keys.integer("block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        feed_forward=keys.integer("feed_forward_length"),
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        context=context,
        norm_epsilon=keys.real("attention.layer_norm_rms_epsilon"),
        rotary=Rotary(head_dim, keys.real("rope.freq_base", 10_000.0), _scaling(keys, context)),
        interleaved=family == "llama",
        biased=_QUERIES_KEYS_VALUES if family == "qwen2" else (),
    )


class _Keys:
    """The keys of one family."""

    def __init__(self, family: str, metadata: Mapping[str, Any]) -> None:
        self._family = family
        self._metadata = metadata

    def integer(self, key: str, default: int | None = None) -> int:
        """A number from 1 to MAX_SIZE."""
        value = self._metadata.get(f"{self._family}.{key}", default)
        if isinstance(value, int) and 1 <= value <= MAX_SIZE:
            return value
        raise ModelError(
            f"the key {self._family}.{key} is {value}, one number from 1 to {MAX_SIZE} is supported; fetch the file"
            " again"
        )

    def real(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self._metadata.get(f"{self._family}.{key}", default)
        if isinstance(value, float) and 0 < value < math.inf:
            return value
        raise ModelError(
            f"the key {self._family}.{key} is {value} and should be a number above 0; fetch the file again"
        )

    def get(self, key: str, default: Any) -> Any:
        """Whatever the key says."""
        return self._metadata.get(f"{self._family}.{key}", default)


def _scaling(keys: _Keys, context: int) -> Scaling | None:
    """Llama 3's scaling is not here: llama.cpp writes it as the tensor rope_freqs.weight."""
    match keys.get("rope.scaling.type", "linear"):  # llama.cpp's default
        case "none":
            return None
        case "linear":
            return Linear(keys.real("rope.scaling.factor", 1.0))
        case "yarn":
            factor = keys.real("rope.scaling.factor")
            magnitude = keys.real("rope.scaling.attn_factor", 1.0) * (0.1 * math.log(max(factor, 1)) + 1)
            return Yarn(
                factor,
                keys.integer("rope.scaling.original_context_length", context),
                keys.real("rope.scaling.yarn_beta_fast", 32.0),
                keys.real("rope.scaling.yarn_beta_slow", 1.0),
                magnitude,
            )
        case kind:
            raise ModelError(f"rotary scaling of type {kind} is not supported; supported: none, linear, yarn")
