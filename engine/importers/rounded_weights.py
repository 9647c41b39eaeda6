"""A decoder's projections as rows of eight-bit integers, over a residual stream that is rotated beforehand.

Owns which weights read the residual and which write it, and so by what each is multiplied before it is rounded; the
norms' gains go into the weights that read them. Of a projection that writes one layer's is held at a time. Numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from engine.importers.decode_weights import DecoderWriter, Progress, StoredTensor
from engine.importers.family import Hyperparameters
from engine.importers.projections import Rounded, Weight
from engine.importers.rotations import Floats, hadamard, neighbours, rotation
from engine.importers.safetensors import as_float32
from engine.importers.weights import WeightsFile


class RoundedWriter(DecoderWriter):
    """See DecoderWriter. The embedding stays as it is stored; a tied head is written once more, in eight bits."""

    def __init__(
        self, model: Hyperparameters, tensors: Mapping[str, StoredTensor], file: WeightsFile, progress: Progress
    ) -> None:
        super().__init__(model, tensors, file, progress)
        self._turn = rotation(model.hidden)

    def _rotation(self) -> TensorProto:
        return self._append("rotation", self._turn)

    def _gain(self, name: str) -> TensorProto:
        self._advance([self._tensors[name]])
        return self._append(name, np.ones(self._model.hidden, np.float32))

    def _group(self, names: Sequence[str], gain: str) -> Sequence[Weight]:
        self._advance([self._tensors[f"{name}.weight"] for name in names])
        return [self._reads(names, gain)]

    def _head(self) -> Weight:
        own = "output" if "output.weight" in self._tensors else None
        if own is not None:
            self._advance([self._tensors["output.weight"]])
        return self._reads([own or "token_embd"], "output_norm.weight")

    def _reads(self, names: Sequence[str], gain: str) -> Rounded:
        """Projections of the normed residual, whose gain is theirs now."""
        turn = as_float32(self._tensors[gain].data)[:, None] * self._turn
        pieces = [round_rows(piece @ turn) for name in names for piece in self._numbers(name)]
        integers, scales = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        return self._rounded(names[0], integers, scales, self._bias(names))

    def _writes(self, name: str, *, inner: bool = False) -> Rounded:
        """A projection into the residual; what the feed-forward holds inside is rotated as the model runs."""
        numbers = self._turn.T @ np.concatenate(list(self._numbers(name)))
        turn = None
        if inner:
            turn = hadamard(neighbours(numbers.shape[1])).astype(np.float32)
            numbers = (numbers.reshape(len(numbers), -1, len(turn)) @ turn).reshape(numbers.shape)
        stored = self._tensors.get(f"{name}.bias")
        bias = None if stored is None else self._append(f"{name}.bias", as_float32(stored.data) @ self._turn)
        self._advance([self._tensors[f"{name}.weight"], *([] if stored is None else [stored])])
        return self._rounded(name, *round_rows(numbers), bias, turn)

    def _numbers(self, name: str) -> Iterator[Floats]:
        tensor = self._tensors[f"{name}.weight"]
        return (piece if tensor.form is None else tensor.form.numbers(piece) for piece in tensor.pieces())

    def _rounded(
        self,
        name: str,
        integers: NDArray[np.int8],
        scales: Floats,
        bias: TensorProto | None,
        turn: Floats | None = None,
    ) -> Rounded:
        rows, columns = integers.shape
        return Rounded(
            rows,
            columns,
            integers=self._append(f"{name}.rounded", np.ascontiguousarray(integers.T)),
            scales=self._append(f"{name}.row_scales", scales),
            bias=bias,
            rotation=None if turn is None else self._append(f"{name}.rotation", turn),
        )


def round_rows(weights: Floats) -> tuple[NDArray[np.int8], Floats]:
    """(integers [N, K] from -127 to 127, scales [N]) whose products are the weights [N, K], or nearly."""
    largest = np.maximum(np.abs(weights).max(axis=1), np.float32(1e-12))
    scales = (largest / np.float32(127)).astype(np.float32)
    return np.rint(weights / scales[:, None]).astype(np.int8), scales
