"""The tensors of a model carried into the weights file and the decode graph, piece by piece.

Owns in what form a stored tensor reaches the graph: blocks as they are and numbers as float32, all as float32, or
projections as rows of eight-bit integers. Tensors bear GGUF's names, whatever file they come from. Memory stays
bounded: of a weight only a piece is ever converted at a time, or, in eight bits, one projection of one layer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from engine.importers import gguf_blocks as blocks
from engine.importers.decode_graph import Layer, Shape, Weights, build_graph
from engine.importers.family import Hyperparameters
from engine.importers.projections import Plain, Quantised, Readable, Rounded, Weight
from engine.importers.rotations import Floats, hadamard, neighbours, rotation, round_rows
from engine.importers.safetensors import as_float32
from engine.importers.weights import WeightsFile
from engine.manifest import ChatFacts

Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, how much there is

#: Of matrices: blocks as the file has them, projections in eight bits with their inputs, or all as float32.
Precision = Literal["exact", "int8", "float32"]

MAX_CHUNK_TOKENS = 512  # new tokens of one sequence in one run; the key/value memory has as much to spare
TOP_K = 64
PIECE_BYTES = 4 << 20  # of a stored tensor that are converted at a time


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor where it lies in a mapped file."""

    shape: tuple[int, ...]  # in weights
    data: NDArray[Any]  # the first axis is the shape's; float32, float16, bfloat16 as uint16, or raw blocks as uint8
    form: blocks.BlockFormat | None = None  # None: numbers

    def pieces(self) -> Iterator[NDArray[Any]]:
        """The tensor in pieces along its first axis: raw rows of blocks, or numbers as float32."""
        rows = max(1, PIECE_BYTES * len(self.data) // max(1, self.data.nbytes))
        for start in range(0, len(self.data), rows):
            piece = self.data[start : start + rows]
            yield piece if self.form is not None else as_float32(piece)


def write_decoder(
    model: Hyperparameters,
    tensors: Mapping[str, StoredTensor],
    file: WeightsFile,
    progress: Progress,
    weights: Precision = "exact",
) -> onnx.ModelProto:
    """Write every tensor to `file` and build the graph over them. `tensors` hold what `model` says it needs."""
    return _Writer(model, tensors, file, progress, weights).graph()


def chat_facts(model: Hyperparameters, *, eos_ids: tuple[int, ...], bos_id: int | None, add_bos: bool) -> ChatFacts:
    """What the manifest says of a model that `write_decoder` has written."""
    return ChatFacts(
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        context=model.context,
        max_chunk=MAX_CHUNK_TOKENS,
        top_k=min(TOP_K, model.vocab_size),
        eos_ids=eos_ids,
        bos_id=bos_id,
        add_bos=add_bos,
    )


class _Writer:
    def __init__(
        self,
        model: Hyperparameters,
        tensors: Mapping[str, StoredTensor],
        file: WeightsFile,
        progress: Progress,
        weights: Precision,
    ) -> None:
        self._model = model
        self._tensors = tensors
        self._file = file
        self._progress = progress
        self._in_blocks = weights != "float32"
        self._rotation = rotation(model.hidden) if weights == "int8" else None
        self._done_bytes = 0
        self._total_bytes = sum(tensor.data.nbytes for tensor in tensors.values())

    def graph(self) -> onnx.ModelProto:
        model = self._model
        shape = Shape(
            layers=model.layers,
            hidden=model.hidden,
            heads=model.heads,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            feed_forward=model.feed_forward,
            vocab_size=model.vocab_size,
            norm_epsilon=model.norm_epsilon,
            top_k=min(TOP_K, model.vocab_size),
            interleaved=model.interleaved,
        )
        cosines, sines = self._rotary_tables()
        weights = Weights(
            embedding=self._weight("token_embd"),
            layers=[self._layer(f"blk.{number}") for number in range(model.layers)],
            output_norm=self._gain("output_norm.weight"),
            head=self._head(),
            rotation=None if self._rotation is None else self._append("rotation", self._rotation),
        )
        return build_graph(shape, weights, cosines, sines)

    def _rotary_tables(self) -> tuple[TensorProto, TensorProto]:
        stored = self._tensors.get("rope_freqs.weight")
        divisors = None if stored is None else np.concatenate(list(stored.pieces()))
        cosines, sines = self._model.rotary.tables(self._model.context + MAX_CHUNK_TOKENS, divisors)
        return self._append("cosines", cosines), self._append("sines", sines)

    def _layer(self, block: str) -> Layer:
        before_attention, before_feed_forward = f"{block}.attn_norm.weight", f"{block}.ffn_norm.weight"
        return Layer(
            attention_norm=self._gain(before_attention),
            query_key_value=self._group([f"{block}.attn_{part}" for part in "qkv"], before_attention),
            attention_output=self._writes(f"{block}.attn_output"),
            feed_forward_norm=self._gain(before_feed_forward),
            gate_up=self._group([f"{block}.ffn_{part}" for part in ("gate", "up")], before_feed_forward),
            down=self._writes(f"{block}.ffn_down", rotates=True),
            query_key_norm=self._head_norms(block) if self._model.head_norms else None,
        )

    def _head_norms(self, block: str) -> TensorProto:
        """The gains of every head of queries and then of keys, float32 [heads + kv_heads, head_dim]."""
        counts = {f"{block}.attn_q_norm.weight": self._model.heads, f"{block}.attn_k_norm.weight": self._model.kv_heads}
        gains = [np.tile(as_float32(self._tensors[name].data), (count, 1)) for name, count in counts.items()]
        return self._append(f"{block}.head_norms", np.concatenate(gains))

    def _group(self, names: Sequence[str], gain: str) -> Sequence[Weight]:
        """Projections of one input, which `gain` scales: a single weight when all are of one form, else one each."""
        if self._rotation is not None:
            return [self._reads(names, gain)]
        if len({self._tensors[f"{name}.weight"].form for name in names}) == 1:
            return [self._weight(*names)]
        return [self._weight(name) for name in names]

    def _head(self) -> Weight | None:
        own = "output" if "output.weight" in self._tensors else None
        if self._rotation is not None:
            return self._reads([own or "token_embd"], "output_norm.weight")
        return None if own is None else self._weight(own)

    def _gain(self, name: str) -> TensorProto:
        """A norm's gain; in eight bits it is ones, because those who read the norm have it in their weights."""
        if self._rotation is None:
            return self._vector(name)
        return self._append(name, np.ones(self._model.hidden, np.float32))

    def _reads(self, names: Sequence[str], gain: str) -> Weight:
        """Projections of the normed residual, in eight bits."""
        assert self._rotation is not None
        turn = as_float32(self._tensors[gain].data)[:, None] * self._rotation
        pieces = [round_rows(piece @ turn) for name in names for piece in self._numbers(name)]
        integers, scales = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        bias = self._bias(names)
        self._advance([self._tensors[f"{name}.weight"] for name in names])
        return self._rounded(names[0], integers, scales, bias)

    def _writes(self, name: str, *, rotates: bool = False) -> Weight:
        """A projection into the residual; in eight bits `rotates` says that its input is rotated first."""
        if self._rotation is None:
            return self._weight(name)
        numbers = self._rotation.T @ np.concatenate(list(self._numbers(name)))
        turn = None
        if rotates:
            turn = hadamard(neighbours(numbers.shape[1])).astype(np.float32)
            numbers = (numbers.reshape(len(numbers), -1, len(turn)) @ turn).reshape(numbers.shape)
        stored = self._tensors.get(f"{name}.bias")
        bias = None if stored is None else self._append(f"{name}.bias", as_float32(stored.data) @ self._rotation)
        self._advance([self._tensors[f"{name}.weight"]])
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

    def _weight(self, *names: str) -> Readable:
        """The weight made of these projections, one below the other."""
        tensors = [self._tensors[f"{name}.weight"] for name in names]
        form = tensors[0].form
        rows, columns = sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[1]
        bias = self._bias(names)

        def part(label: str, shape: tuple[int, ...], convert: Callable[..., NDArray[Any]]) -> TensorProto:
            pieces = (convert(piece) for tensor in tensors for piece in tensor.pieces())
            return self._file.append(f"{names[0]}.{label}", shape, pieces)

        if form is None:
            weight: Readable = Plain(rows, columns, part("weight", (rows, columns), lambda piece: piece), bias)
        elif not self._in_blocks:
            weight = Plain(rows, columns, part("weight", (rows, columns), form.numbers), bias)
        else:
            per_block = (rows, columns // form.block)
            weight = Quantised(
                rows,
                columns,
                form.bits,
                integers=part("integers", (*per_block, form.block * form.bits // 8), form.integers),
                scales=part("scales", per_block, form.scales),
                centres=None if form.centres is None else part("centres", per_block, form.centres),
                block=form.block,
                bias=bias,
            )
        self._advance(tensors)
        return weight

    def _bias(self, names: Sequence[str]) -> TensorProto | None:
        stored = [self._tensors[f"{name}.bias"] for name in names if f"{name}.bias" in self._tensors]
        if not stored:
            return None
        self._advance(stored)
        return self._append(f"{names[0]}.bias", np.concatenate([as_float32(tensor.data) for tensor in stored]))

    def _vector(self, name: str) -> TensorProto:
        self._advance([self._tensors[name]])
        return self._append(name, as_float32(self._tensors[name].data))

    def _append(self, name: str, values: NDArray[Any]) -> TensorProto:
        return self._file.append(name, values.shape, [values])

    def _advance(self, tensors: Sequence[StoredTensor]) -> None:
        self._done_bytes += sum(tensor.data.nbytes for tensor in tensors)
        self._progress("weights", self._done_bytes, self._total_bytes)
