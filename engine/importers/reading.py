"""A text as a model reads it, layer by layer, while its weights are being written: what reaches each projection.

A llama-shaped forward pass around the projections, which the writer carries out itself: it has the weights, and only
of one projection at a time. Pure numpy in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.importers.family import Hyperparameters

Floats = NDArray[np.float32]

PASSAGE_TOKENS = 256  # that are read together; passages know nothing of each other


def passage_tokens(num_tokens: int, context: int) -> int:
    """The length of passages into which a text is cut; what is left over at its end is not read."""
    return min(num_tokens, context, PASSAGE_TOKENS)


class Attended(NamedTuple):
    """Attention's answer, and how large what it kept in memory was."""

    mixed: Floats  # [T, heads·head_dim]
    largest_keys: Floats  # [kv_heads, head_dim], of each pair that is rotated together
    largest_values: Floats  # [kv_heads, head_dim]


class Reading:
    """Passages in the residual stream of a model, between two of its projections."""

    def __init__(self, model: Hyperparameters, embedded: Floats, cosines: Floats, sines: Floats) -> None:
        """embedded: [T, hidden], T a multiple of the passages' length P; cosines, sines: [P, head_dim/2]."""
        self._model = model
        self._residual = embedded
        self._cosines, self._sines = cosines[:, None], sines[:, None]  # for each head

    def normed(self) -> Floats:
        """The residual [T, hidden] after an RMS norm without gain."""
        return _normed(self._residual, self._model.norm_epsilon)

    def attend(self, packed: Floats, gains: Floats | None) -> Attended:
        """Attention over queries, keys and values [T, (heads + 2 kv_heads)·head_dim].

        gains: [heads + kv_heads, head_dim], of the norms of queries and keys, where the model has them.
        """
        model, length = self._model, len(self._cosines)
        heads = packed.reshape(len(packed) // length, length, model.heads + 2 * model.kv_heads, model.head_dim)
        queries_keys, values = np.split(heads, [model.heads + model.kv_heads], axis=2)
        if gains is not None:
            queries_keys = _normed(queries_keys, model.norm_epsilon) * gains
        queries_keys = self._rotated(queries_keys)
        unseen = np.triu(np.full((length, length), -np.inf, np.float32), 1)
        mixed = np.empty((len(heads), length, model.heads, model.head_dim), np.float32)
        for head in range(model.heads):
            group = head // (model.heads // model.kv_heads)
            keys = queries_keys[:, :, model.heads + group].swapaxes(1, 2)
            scores = queries_keys[:, :, head] @ keys / np.sqrt(np.float32(model.head_dim)) + unseen
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed[:, :, head] = weights / weights.sum(axis=-1, keepdims=True) @ values[:, :, group]
        keys = self._pair_sizes(queries_keys[:, :, model.heads :])
        return Attended(
            mixed.reshape(len(packed), model.heads * model.head_dim),
            keys.max(axis=(0, 1), initial=0),
            np.abs(values).max(axis=(0, 1), initial=0),
        )

    def activate(self, gate_up: Floats) -> Floats:
        """silu(gate) · up of both, [T, 2 feed_forward]."""
        gate, up = np.split(gate_up, 2, axis=-1)
        active: Floats = gate / (1 + np.exp(np.minimum(-gate, np.float32(80)))) * up
        return active

    def add(self, delta: Floats) -> None:
        """Into the residual, [T, hidden]."""
        self._residual = self._residual + delta

    def _rotated(self, heads: Floats) -> Floats:
        first, second = self._pairs()
        left, right = heads[..., first], heads[..., second]
        turned = np.empty_like(heads)
        turned[..., first] = left * self._cosines - right * self._sines
        turned[..., second] = left * self._sines + right * self._cosines
        return turned

    def _pair_sizes(self, heads: Floats) -> Floats:
        """For each number the length of its pair, which no rotation changes."""
        first, second = self._pairs()
        sizes = np.empty_like(heads)
        sizes[..., first] = sizes[..., second] = np.hypot(heads[..., first], heads[..., second])
        return sizes

    def _pairs(self) -> tuple[slice, slice]:
        """Where the numbers lie that are rotated together."""
        if self._model.interleaved:
            return slice(0, None, 2), slice(1, None, 2)
        return slice(0, self._model.head_dim // 2), slice(self._model.head_dim // 2, None)


def _normed(values: Floats, epsilon: float) -> Floats:
    """Along the last axis."""
    normed: Floats = values / np.sqrt(np.mean(values * values, axis=-1, keepdims=True) + np.float32(epsilon))
    return normed
