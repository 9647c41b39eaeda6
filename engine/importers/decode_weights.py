"""The tensors of a model carried into the weights file and the decode graph, piece by piece.

Owns in what form a stored tensor reaches the graph: blocks as they are and numbers as float32, or all as float32; the
form in eight bits is engine/importers/rounded_weights.py's. Tensors bear GGUF's names, whatever file they come from.
Memory stays bounded: of a weight only a piece is ever converted at a time.
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
from engine.importers.projections import Plain, Quantised, Readable, Weight
from engine.importers.safetensors import as_float32
from engine.importers.weights import WeightsFile
from engine.manifest import ChatFacts

Floats = NDArray[np.float32]

Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, how much there is

#: Of matrices: blocks as the file has them, projections in eight bits with their inputs, or all as float32.
Precision = Literal["exact", "int8", "float32"]

#: Of what numbers the memory of keys and values is made.
KvCache = Literal["float32", "int8"]

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


def chat_facts(
    model: Hyperparameters,
    *,
    eos_ids: tuple[int, ...],
    bos_id: int | None,
    add_bos: bool,
    kv_cache: KvCache = "float32",
) -> ChatFacts:
    """What the manifest says of a model that a DecoderWriter has written."""
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
        kv_cache=kv_cache,
    )


class DecoderWriter:
    """Writes every tensor to a file and builds the graph over them.

    tensors hold what `model` says it needs. in_blocks: quantised matrices stay as they are, else they become float32.
    """

    def __init__(
        self,
        model: Hyperparameters,
        tensors: Mapping[str, StoredTensor],
        file: WeightsFile,
        progress: Progress,
        *,
        in_blocks: bool = True,
    ) -> None:
        self._model = model
        self._tensors = tensors
        self._file = file
        self._progress = progress
        self._in_blocks = in_blocks
        self._done_bytes = 0
        self._total_bytes = sum(tensor.data.nbytes for tensor in tensors.values())

    def graph(self) -> onnx.ModelProto:
        """Write all; the graph."""
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
            rotation=self._rotation(),
        )
        return build_graph(shape, weights, cosines, sines)

    def _rotary_tables(self) -> tuple[TensorProto, TensorProto]:
        cosines, sines = self._rotary(self._model.context + MAX_CHUNK_TOKENS)
        return self._append("cosines", cosines), self._append("sines", sines)

    def _rotary(self, positions: int) -> tuple[Floats, Floats]:
        stored = self._tensors.get("rope_freqs.weight")
        divisors = None if stored is None else np.concatenate(list(stored.pieces()))
        return self._model.rotary.tables(positions, divisors)

    def _layer(self, block: str) -> Layer:
        before_attention, before_feed_forward = f"{block}.attn_norm.weight", f"{block}.ffn_norm.weight"
        gains = self._head_gains(block)
        return Layer(
            attention_norm=self._gain(before_attention),
            query_key_value=self._group([f"{block}.attn_{part}" for part in "qkv"], before_attention),
            attention_output=self._writes(f"{block}.attn_output"),
            feed_forward_norm=self._gain(before_feed_forward),
            gate_up=self._group([f"{block}.ffn_{part}" for part in ("gate", "up")], before_feed_forward),
            down=self._writes(f"{block}.ffn_down", inner=True),
            query_key_norm=None if gains is None else self._append(f"{block}.head_norms", gains),
            cache_steps=self._cache_steps(block),
        )

    def _cache_steps(self, block: str) -> tuple[TensorProto, TensorProto] | None:
        """The steps of keys and of values that are kept in eight bits, [1, kv_heads, 1, head_dim]."""
        return None

    def _head_gains(self, block: str) -> Floats | None:
        """Of the norms of every head of queries and then of keys, [heads + kv_heads, head_dim]; None: it has none."""
        if not self._model.head_norms:
            return None
        counts = {f"{block}.attn_q_norm.weight": self._model.heads, f"{block}.attn_k_norm.weight": self._model.kv_heads}
        gains = [np.tile(as_float32(self._tensors[name].data), (count, 1)) for name, count in counts.items()]
        return np.concatenate(gains)

    def _group(self, names: Sequence[str], gain: str) -> Sequence[Weight]:
        """Projections of one input, which `gain` scales: a single weight when all are of one form, else one each."""
        if len({self._tensors[f"{name}.weight"].form for name in names}) == 1:
            return [self._weight(*names)]
        return [self._weight(name) for name in names]

    def _gain(self, name: str) -> TensorProto:
        return self._vector(name)

    def _writes(self, name: str, *, inner: bool = False) -> Weight:
        """A projection into the residual. inner: its input is what the feed-forward holds inside."""
        return self._weight(name)

    def _head(self) -> Weight | None:
        return self._weight("output") if "output.weight" in self._tensors else None

    def _rotation(self) -> TensorProto | None:
        return None

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
        values = self._bias_values(names)
        return None if values is None else self._append(f"{names[0]}.bias", values)

    def _bias_values(self, names: Sequence[str]) -> Floats | None:
        stored = [self._tensors[f"{name}.bias"] for name in names if f"{name}.bias" in self._tensors]
        if not stored:
            return None
        self._advance(stored)
        return np.concatenate([as_float32(tensor.data) for tensor in stored])

    def _vector(self, name: str) -> TensorProto:
        self._advance([self._tensors[name]])
        return self._append(name, as_float32(self._tensors[name].data))

    def _append(self, name: str, values: NDArray[Any]) -> TensorProto:
        return self._file.append(name, values.shape, [values])

    def _advance(self, tensors: Sequence[StoredTensor]) -> None:
        self._done_bytes += sum(tensor.data.nbytes for tensor in tensors)
        self._progress("weights", self._done_bytes, self._total_bytes)
