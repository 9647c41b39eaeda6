"""Rotary embeddings: the angle of each position and pair, and what stretches them beyond the trained context.

Pure numpy. RoFormer (Su et al. 2021); linear interpolation (Chen et al. 2023); YaRN (Peng et al. 2023) and Llama 3's
smoothing as Hugging Face's modeling_rope_utils and llama.cpp compute them. All are static: the tables hold for every
length, so a text within the trained context is stretched too.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Linear:
    """Positions are divided by the factor."""

    factor: float

    def scale(self, rotary: "Rotary", frequencies: Reals) -> Reals:
        """The frequencies [head_dim/2] after scaling, in radians a token."""
        return frequencies / self.factor


@dataclass(frozen=True, slots=True)
class Yarn:
    """Slow pairs are interpolated by the factor, fast ones kept, and between them a ramp mixes both."""

    factor: float
    original_context: int  # tokens that the model was trained on
    beta_fast: float = 32.0  # turns within that context from which on a pair is kept
    beta_slow: float = 1.0  # turns up to which it is interpolated in full
    magnitude: float | None = None  # of queries and keys; None: 0.1 ln(factor) + 1

    def scale(self, rotary: "Rotary", frequencies: Reals) -> Reals:
        """See Linear."""
        first = max(math.floor(self._pair_of(self.beta_fast, rotary)), 0)
        last = min(math.ceil(self._pair_of(self.beta_slow, rotary)), rotary.head_dim - 1)
        pairs = np.arange(len(frequencies))
        interpolated = np.clip((pairs - first) / max(last - first, 0.001), 0, 1)
        return frequencies * (interpolated / self.factor + 1 - interpolated)

    def _pair_of(self, turns: float, rotary: "Rotary") -> float:
        """The pair, as a real number, that turns so often within the trained context."""
        position = math.log(self.original_context / (turns * 2 * math.pi))
        return rotary.head_dim * position / (2 * math.log(rotary.base))


@dataclass(frozen=True, slots=True)
class Llama3:
    """Pairs of long wavelength are interpolated by the factor, short ones kept, and those between mixed."""

    factor: float
    original_context: int
    low_frequency_factor: float
    high_frequency_factor: float

    def scale(self, rotary: "Rotary", frequencies: Reals) -> Reals:
        """See Linear."""
        turns = self.original_context * frequencies / (2 * math.pi)
        width = self.high_frequency_factor - self.low_frequency_factor
        kept = np.clip((turns - self.low_frequency_factor) / width, 0, 1)
        return frequencies * ((1 - kept) / self.factor + kept)


Scaling = Linear | Yarn | Llama3


@dataclass(frozen=True, slots=True)
class Rotary:
    """How the heads of a model are rotated."""

    head_dim: int
    base: float
    scaling: Scaling | None = None

    def tables(
        self, positions: int, divisors: NDArray[np.float32] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines, float32 [positions, head_dim/2]; `divisors` [head_dim/2] divide the frequencies.

        The magnitude that YaRN gives to queries and keys is a factor of both tables.
        """
        frequencies = self.base ** -(np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim)
        magnitude = 1.0
        if self.scaling is not None:
            frequencies = self.scaling.scale(self, frequencies)
        if isinstance(self.scaling, Yarn):
            magnitude = self.scaling.magnitude or 0.1 * math.log(max(self.scaling.factor, 1)) + 1
        if divisors is not None:
            frequencies = frequencies / divisors
        angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
        return (magnitude * np.cos(angles)).astype(np.float32), (magnitude * np.sin(angles)).astype(np.float32)
