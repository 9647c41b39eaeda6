"""A float32 forward pass of llama-shaped models in plain numpy, to hold the engine against.

Shares nothing with the importers: weights are dequantised by the gguf package, attention is written out, heads are
rotated as complex numbers, and rotary scaling follows the papers pair by pair.
"""

import math
from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class FloatModel:
    """A model of one family; every tensor is float32 and bears GGUF's name, as do the keys without the family's."""

    def __init__(self, family: str, keys: Mapping[str, Any], tensors: Mapping[str, Floats]) -> None:
        self._keys, self._tensors = keys, tensors
        self._interleaved = family == "llama"  # GGUF's llama; the others rotate the halves of a head

    def logits(self, tokens: list[int]) -> Floats:
        """The logits [T, V] after each of the tokens."""
        x = self._tensors["token_embd.weight"][tokens]
        for layer in range(self._keys["block_count"]):
            x = x + self._attention(f"blk.{layer}", self._norm(f"blk.{layer}.attn_norm", x))
            x = x + self._feed_forward(f"blk.{layer}", self._norm(f"blk.{layer}.ffn_norm", x))
        head = self._tensors.get("output.weight", self._tensors["token_embd.weight"])
        return self._norm("output_norm", x) @ head.T

    def _norm(self, name: str, x: Floats) -> Floats:
        if f"{name}.weight" not in self._tensors:
            return x
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self._keys["attention.layer_norm_rms_epsilon"])
        return (x / scale * self._tensors[f"{name}.weight"]).astype(np.float32)

    def _dense(self, name: str, x: Floats) -> Floats:
        return x @ self._tensors[f"{name}.weight"].T + self._tensors.get(f"{name}.bias", np.float32(0))

    def _attention(self, block: str, x: Floats) -> Floats:
        heads, groups = self._keys["attention.head_count"], self._keys["attention.head_count_kv"]
        q, k, v = (
            self._dense(f"{block}.attn_{part}", x).reshape(len(x), count, -1).swapaxes(0, 1)
            for part, count in (("q", heads), ("k", groups), ("v", groups))
        )
        q, k = self._rotate(self._norm(f"{block}.attn_q_norm", q)), self._rotate(self._norm(f"{block}.attn_k_norm", k))
        k, v = (np.repeat(part, heads // groups, axis=0) for part in (k, v))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]) + np.triu(np.full((len(x), len(x)), -np.inf), 1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (weights / weights.sum(axis=-1, keepdims=True)) @ v
        joined = mixed.swapaxes(0, 1).reshape(len(x), -1).astype(np.float32)
        return self._dense(f"{block}.attn_output", joined)

    def _rotate(self, heads: Floats) -> Floats:
        pairs = heads.shape[-1] // 2
        frequencies = np.array([self._frequency(pair, pairs) for pair in range(pairs)])
        if "rope_freqs.weight" in self._tensors:
            frequencies = frequencies / self._tensors["rope_freqs.weight"]
        turn = np.exp(1j * np.arange(heads.shape[1])[:, None] * frequencies)
        if self._keys.get("rope.scaling.type") == "yarn":
            turn = turn * (1 + 0.1 * math.log(self._keys["rope.scaling.factor"]))
        if self._interleaved:
            turned = (heads[..., 0::2] + 1j * heads[..., 1::2]) * turn
            return np.stack([turned.real, turned.imag], axis=-1).reshape(heads.shape).astype(np.float32)
        turned = (heads[..., :pairs] + 1j * heads[..., pairs:]) * turn
        return np.concatenate([turned.real, turned.imag], axis=-1).astype(np.float32)

    def _frequency(self, pair: int, pairs: int) -> float:
        """Radians a token of one pair; NTK-by-parts as in section 3.2 of the YaRN paper, Llama 3's as Meta has it."""
        base, factor = self._keys["rope.freq_base"], self._keys.get("rope.scaling.factor", 1.0)
        frequency = base ** (-pair / pairs)
        original = self._keys.get("rope.scaling.original_context_length", 0)
        match self._keys.get("rope.scaling.type"):
            case "linear":
                return frequency / factor
            case "yarn":
                low, high = (pairs * math.log(original / (turns * 2 * math.pi)) / math.log(base) for turns in (32, 1))
                first, last = max(math.floor(low), 0), min(math.ceil(high), 2 * pairs - 1)
                ramp = min(max((pair - first) / max(last - first, 0.001), 0), 1)
                return (1 - ramp) * frequency + ramp * frequency / factor
            case "llama3":
                low, high = self._keys["rope.scaling.low"], self._keys["rope.scaling.high"]
                wavelength = 2 * math.pi / frequency
                if wavelength < original / high:
                    return frequency
                if wavelength > original / low:
                    return frequency / factor
                smooth = (original / wavelength - low) / (high - low)
                return (1 - smooth) * frequency / factor + smooth * frequency
        return frequency

    def _feed_forward(self, block: str, x: Floats) -> Floats:
        gate, up = self._dense(f"{block}.ffn_gate", x), self._dense(f"{block}.ffn_up", x)
        return self._dense(f"{block}.ffn_down", gate / (1 + np.exp(-gate)) * up)


class Reference(FloatModel):
    """The model of a GGUF file, dequantised."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        family = str(reader.fields["general.architecture"].contents())
        keys = {
            key.removeprefix(f"{family}."): field.contents()
            for key, field in reader.fields.items()
            if key.startswith(f"{family}.")
        }
        tensors = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            for tensor in reader.tensors
        }
        super().__init__(family, keys, tensors)


def log_softmax(logits: Floats) -> Floats:
    """Log-probabilities along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def mean_kl(reference: Floats, other: Floats) -> float:
    """The mean Kullback-Leibler divergence, in nats, of `other` from `reference` (logits [T, V])."""
    expected, actual = log_softmax(reference), log_softmax(other)
    return float((np.exp(expected) * (expected - actual)).sum(axis=-1).mean())
