"""What config.json of a Hugging Face folder says of a decoder: its family, its sizes, its rotary embeddings.

Raises ValueError for what is missing and for what the decode graph would compute wrongly. Reads no weights.
"""

import math
from collections.abc import Mapping
from typing import Any

from engine.importers.family import MAX_SIZE, Hyperparameters
from engine.importers.rope import Linear, Llama3, Rotary, Scaling, Yarn

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_QUERIES_KEYS_VALUES = ("attn_q", "attn_k", "attn_v")


def read_hyperparameters(config: Mapping[str, Any]) -> Hyperparameters:
    """The sizes in config.json. Raises ValueError."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"model_type is {family!r}; supported: {', '.join(FAMILIES)}, and encoders of type bert")
    _refuse(config, {"hidden_act": "silu", "mlp_bias": False})
    hidden, heads = _integer(config, "hidden_size"), _integer(config, "num_attention_heads")
    kv_heads = _integer(config, "num_key_value_heads", heads)
    head_dim = _integer(config, "head_dim", max(1, hidden // heads))
    if head_dim % 2 or heads % kv_heads:
        raise ValueError(f"{heads} heads of {head_dim} and {kv_heads} of keys and values do not fit together")
    positions = _integer(config, "max_position_embeddings")
    rotary = _rotary(config, head_dim, positions)
    return Hyperparameters(
        family=family,
        layers=_integer(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        feed_forward=_integer(config, "intermediate_size"),
        vocab_size=_integer(config, "vocab_size"),
        context=_context(config, rotary, positions),
        norm_epsilon=_real(config, "rms_norm_eps", 1e-6),
        rotary=rotary,
        interleaved=False,
        biased=_biased(config, family),
    )


def _biased(config: Mapping[str, Any], family: str) -> tuple[str, ...]:
    if family == "qwen2":
        return _QUERIES_KEYS_VALUES
    return (*_QUERIES_KEYS_VALUES, "attn_output") if config.get("attention_bias") else ()


def _context(config: Mapping[str, Any], rotary: Rotary, positions: int) -> int:
    """The positions that the model takes; a sliding window is not computed, so no text may be longer than it."""
    if isinstance(rotary.scaling, Yarn):
        positions = max(positions, int(rotary.scaling.factor * rotary.scaling.original_context))
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    return positions if window is None else min(positions, _integer(config, "sliding_window"))


def _rotary(config: Mapping[str, Any], head_dim: int, positions: int) -> Rotary:
    """Newer files keep base and scaling together in rope_parameters, older ones apart."""
    said = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(said, Mapping):
        raise ValueError(f"the rotary scaling is {said!r}, a table is needed")
    base = _real(said if "rope_theta" in said else config, "rope_theta", 10_000.0)
    _refuse({**config, **said}, {"partial_rotary_factor": 1.0})
    kind = said.get("rope_type", said.get("type", "default"))
    return Rotary(head_dim, base, _scaling(said, kind, positions))


def _scaling(said: Mapping[str, Any], kind: object, positions: int) -> Scaling | None:
    original = _integer(said, "original_max_position_embeddings", positions)
    match kind:
        case "default":
            return None
        case "linear":
            return Linear(_real(said, "factor"))
        case "llama3":
            low, high = _real(said, "low_freq_factor"), _real(said, "high_freq_factor")
            if high <= low:
                raise ValueError(f"high_freq_factor {high} is not above low_freq_factor {low}")
            return Llama3(_real(said, "factor"), original, low, high)
        case "yarn":
            _refuse(said, {"mscale": None, "mscale_all_dim": None, "truncate": True})
            return Yarn(
                _real(said, "factor"),
                original,
                _real(said, "beta_fast", 32.0),
                _real(said, "beta_slow", 1.0),
                _real(said, "attention_factor") if said.get("attention_factor") is not None else None,
            )
    raise ValueError(f"rotary scaling of type {kind!r} is not supported; supported: linear, llama3, yarn")


def _refuse(config: Mapping[str, Any], computed: Mapping[str, Any]) -> None:
    for key, value in computed.items():
        if config.get(key, value) != value:
            raise ValueError(f"{key} is {config[key]!r}; only {value!r} is computed")


def _integer(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = default if config.get(key) is None else config[key]
    if type(value) is int and 1 <= value <= MAX_SIZE:
        return value
    raise ValueError(f"{key} is {value!r}, a whole number from 1 to {MAX_SIZE} is needed")


def _real(config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = default if config.get(key) is None else config[key]
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise ValueError(f"{key} is {value!r}, a number above 0 is needed")
