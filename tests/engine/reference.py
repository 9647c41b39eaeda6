"""A float32 forward pass of a GGUF llama model in plain numpy, to hold the engine against.

Shares nothing with the importer: weights are dequantised by the gguf package, attention is written out, heads are
rotated as complex numbers.
"""

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Reference:
    """The dequantised model; every tensor is float32."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self._metadata: dict[str, Any] = {
            key: field.contents() for key, field in reader.fields.items() if key.startswith("llama.")
        }
        self._tensors = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            for tensor in reader.tensors
        }

    def logits(self, tokens: list[int]) -> Floats:
        """The logits [T, V] after each of the tokens."""
        x = self._tensors["token_embd.weight"][tokens]
        for layer in range(self._number("block_count")):
            x = x + self._attention(layer, self._norm(f"blk.{layer}.attn_norm", x))
            x = x + self._feed_forward(layer, self._norm(f"blk.{layer}.ffn_norm", x))
        head = self._tensors.get("output.weight", self._tensors["token_embd.weight"])
        return self._norm("output_norm", x) @ head.T

    def _number(self, key: str) -> Any:
        return self._metadata[f"llama.{key}"]

    def _norm(self, name: str, x: Floats) -> Floats:
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self._number("attention.layer_norm_rms_epsilon"))
        return (x / scale * self._tensors[f"{name}.weight"]).astype(np.float32)

    def _attention(self, layer: int, x: Floats) -> Floats:
        heads, groups = self._number("attention.head_count"), self._number("attention.head_count_kv")
        q, k, v = (
            (x @ self._tensors[f"blk.{layer}.attn_{part}.weight"].T).reshape(len(x), count, -1).swapaxes(0, 1)
            for part, count in (("q", heads), ("k", groups), ("v", groups))
        )
        q, k = self._rotate(q), self._rotate(k)
        k, v = (np.repeat(part, heads // groups, axis=0) for part in (k, v))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]) + np.triu(np.full((len(x), len(x)), -np.inf), 1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (weights / weights.sum(axis=-1, keepdims=True)) @ v
        joined = mixed.swapaxes(0, 1).reshape(len(x), -1).astype(np.float32)
        return joined @ self._tensors[f"blk.{layer}.attn_output.weight"].T

    def _rotate(self, heads: Floats) -> Floats:
        pairs = heads.shape[-1] // 2
        frequencies = self._number("rope.freq_base") ** (-np.arange(pairs) / pairs)
        if "rope_freqs.weight" in self._tensors:
            frequencies = frequencies / self._tensors["rope_freqs.weight"]
        turn = np.exp(1j * np.arange(heads.shape[1])[:, None] * frequencies)
        turned = (heads[..., 0::2] + 1j * heads[..., 1::2]) * turn
        return np.stack([turned.real, turned.imag], axis=-1).reshape(heads.shape).astype(np.float32)

    def _feed_forward(self, layer: int, x: Floats) -> Floats:
        gate = x @ self._tensors[f"blk.{layer}.ffn_gate.weight"].T
        up = x @ self._tensors[f"blk.{layer}.ffn_up.weight"].T
        return (gate / (1 + np.exp(-gate)) * up) @ self._tensors[f"blk.{layer}.ffn_down.weight"].T


def log_softmax(logits: Floats) -> Floats:
    """Log-probabilities along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def mean_kl(reference: Floats, other: Floats) -> float:
    """The mean Kullback-Leibler divergence, in nats, of `other` from `reference` (logits [T, V])."""
    expected, actual = log_softmax(reference), log_softmax(other)
    return float((np.exp(expected) * (expected - actual)).sum(axis=-1).mean())
