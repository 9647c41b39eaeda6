"""A decoder's projections as rows of eight-bit integers, over a residual stream that is rotated beforehand.

Owns which weights read the residual and which write it, and so by what each is multiplied before it is rounded; the
norms' gains go into the weights that read them. While weights are written a text is read with them, rounded as they
are, so that each is rounded for the inputs that reach it. Of a projection that writes one layer's is held at a time.
Numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from engine.importers.compensation import Compensation
from engine.importers.decode_weights import DecoderWriter, Floats, KvCache, Progress, StoredTensor
from engine.importers.family import Hyperparameters
from engine.importers.projections import Rounded, Weight
from engine.importers.reading import Reading, passage_tokens
from engine.importers.rotations import hadamard, neighbours, rotation
from engine.importers.safetensors import as_float32
from engine.importers.weights import WeightsFile

MOST_TOKENS = 1536  # of the text that are read: what rounding takes of the memory grows with them
CACHE_HEADROOM = 1.2  # what is kept in memory may be so much larger than any that was seen before it is cut off

Rows = tuple[NDArray[np.int8], Floats]  # integers [N, K] and scales [N]


class RoundedWriter(DecoderWriter):
    """See DecoderWriter. The embedding stays as it is stored; a tied head is written once more, in eight bits."""

    def __init__(
        self,
        model: Hyperparameters,
        tensors: Mapping[str, StoredTensor],
        file: WeightsFile,
        progress: Progress,
        text: Sequence[int],
        *,
        kv_cache: KvCache = "float32",
    ) -> None:
        """text: tokens like those that the model will read; of none, it reads a single one."""
        super().__init__(model, tensors, file, progress)
        self._kv_cache = kv_cache
        self._turn = rotation(model.hidden)
        self._text = text[:MOST_TOKENS] or (0,)
        self._largest: list[Floats] = []  # keys and values that attention kept last
        self._answers = np.zeros((0, 0), np.float32)  # of the projections that read the residual last

    def graph(self) -> onnx.ModelProto:
        """See DecoderWriter."""
        length = passage_tokens(len(self._text), self._model.context)
        text = self._text[: len(self._text) // length * length]
        self._reading = Reading(self._model, self._embedded(text), *self._rotary(length))
        return super().graph()

    def _embedded(self, tokens: Sequence[int]) -> Floats:
        tensor = self._tensors["token_embd.weight"]
        rows = tensor.data[np.asarray(tokens, np.int64)]
        return as_float32(rows) if tensor.form is None else tensor.form.numbers(rows)

    def _rotation(self) -> TensorProto:
        return self._append("rotation", self._turn)

    def _gain(self, name: str) -> TensorProto:
        self._advance([self._tensors[name]])
        return self._append(name, np.ones(self._model.hidden, np.float32))

    def _group(self, names: Sequence[str], gain: str) -> Sequence[Weight]:
        self._advance([self._tensors[f"{name}.weight"] for name in names])
        inputs = self._reading.normed() @ self._turn
        rows = self._read_rows(names, gain, inputs)
        bias = self._bias_values(names)
        self._answers = _answers(inputs, rows, bias)
        return [self._rounded(names[0], rows, bias)]

    def _head(self) -> Weight:
        own = "output" if "output.weight" in self._tensors else None
        if own is not None:
            self._advance([self._tensors["output.weight"]])
        name = own or "token_embd"
        inputs = self._reading.normed() @ self._turn
        return self._rounded(name, self._read_rows([name], "output_norm.weight", inputs), self._bias_values([name]))

    def _read_rows(self, names: Sequence[str], gain: str, inputs: Floats) -> Rows:
        """Projections of the normed residual, whose gain is theirs now."""
        turn = as_float32(self._tensors[gain].data)[:, None] * self._turn
        compensation = Compensation(inputs)
        pieces = [compensation.round_rows(piece @ turn) for name in names for piece in self._numbers(name)]
        integers, scales = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        return integers, scales

    def _writes(self, name: str, *, inner: bool = False) -> Rounded:
        """A projection into the residual; what the feed-forward holds inside is rotated as the model runs."""
        numbers = self._turn.T @ np.concatenate(list(self._numbers(name)))
        turn = None
        if inner:
            inputs = self._reading.activate(self._answers)
            turn = hadamard(neighbours(numbers.shape[1])).astype(np.float32)
            numbers, inputs = _turned(numbers, turn), _turned(inputs, turn)
        else:
            inputs, *self._largest = self._reading.attend(self._answers, self._head_gains(name.rpartition(".")[0]))
        rows = Compensation(inputs).round_rows(numbers)
        stored = self._bias_values([name])
        bias = None if stored is None else stored @ self._turn
        self._reading.add(_answers(inputs, rows, bias) @ self._turn.T)
        self._advance([self._tensors[f"{name}.weight"]])
        return self._rounded(name, rows, bias, turn)

    def _cache_steps(self, block: str) -> tuple[TensorProto, TensorProto] | None:
        if self._kv_cache == "float32":
            return None
        steps = [np.maximum(largest * CACHE_HEADROOM / 127, 1e-12).astype(np.float32) for largest in self._largest]
        keys, values = (
            self._append(f"{block}.{name}_steps", step[None, :, None])
            for name, step in zip(("key", "value"), steps, strict=True)
        )
        return keys, values

    def _numbers(self, name: str) -> Iterator[Floats]:
        tensor = self._tensors[f"{name}.weight"]
        return (piece if tensor.form is None else tensor.form.numbers(piece) for piece in tensor.pieces())

    def _rounded(self, name: str, rows: Rows, bias: Floats | None, turn: Floats | None = None) -> Rounded:
        integers, scales = rows
        count, columns = integers.shape
        return Rounded(
            count,
            columns,
            integers=self._append(f"{name}.rounded", np.ascontiguousarray(integers.T)),
            scales=self._append(f"{name}.row_scales", scales),
            bias=None if bias is None else self._append(f"{name}.bias", bias),
            rotation=None if turn is None else self._append(f"{name}.rotation", turn),
        )


def _answers(inputs: Floats, rows: Rows, bias: Floats | None) -> Floats:
    integers, scales = rows
    answers: Floats = inputs @ integers.T.astype(np.float32) * scales
    return answers if bias is None else answers + bias


def _turned(values: Floats, turn: Floats) -> Floats:
    """Neighbours along the last axis multiplied by `turn`."""
    count, columns = values.shape
    turned: Floats = (values.reshape(count, columns // len(turn), len(turn)) @ turn).reshape(values.shape)
    return turned
