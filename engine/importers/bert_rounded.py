"""A text encoder's products in eight bits, weights and what they are multiplied by.

Owns how both are rounded so that little is lost. Every token is rounded by its own largest number, so texts of a batch
change nothing in each other. Some columns of what is normalised are ten times as large as others, in every token: they
are made smaller, and the weights that read them larger, by a second normalisation with another gain (Xiao et al.,
"SmoothQuant", 2023). The feed-forward holds numbers in a few columns that are larger still: those are multiplied in
float32, by a small Gemm that adds the residual as well.

On 420 texts (one word to 256 tokens, prose, code, many scripts) MiniLM's vectors rounded plainly have a cosine of
0.9972 to those in float32, so rounded of 0.9992; the worst has 0.980, so 0.996.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from engine.importers.bert_graph import BertShape, EncoderGraph, Normed, Products
from engine.importers.projections import MICROSOFT, Rounded

Floats = NDArray[np.float32]

SHARE = 0.75  # of a column's size that goes to the weights; MiniLM loses as much by 0.65, more by 0.85 and 0.92
FLOAT_COLUMNS = 24  # one of so many columns of the feed-forward stays float32


class RoundedProducts(Products):
    """See Products; of the graph's operators only ONNX Runtime's provider for the CPU has all."""

    def __init__(self, graph: EncoderGraph, shape: BertShape, sizes: Mapping[str, Floats]) -> None:
        """sizes: the largest of each column, by value (engine/importers/bert_reading.py)."""
        super().__init__(graph, shape)
        self._sizes = sizes

    def attend(self, name: str, source: Normed, qkv: Floats, bias: Floats) -> str:
        graph = self.graph
        spread, weight = self._spread(f"{name}.spread", source, qkv)
        stored = graph.stored(f"{name}.qkv.bias", bias)
        graph.project(spread, [self._rounded(f"{name}.qkv", weight, stored)], f"{name}.qkv.out")
        parts = [f"{name}.{part}" for part in ("query", "key", "value")]
        graph.add("Split", [f"{name}.qkv.out"], *parts, axis=1, num_outputs=3)
        inputs = [graph.add("Reshape", [part, "by_text"], f"{part}.by_text") for part in parts]
        inputs += ["", "lengths"]
        heads = self.shape.heads
        graph.add("MultiHeadAttention", inputs, f"{name}.by_text", domain=MICROSOFT, num_heads=heads)
        return graph.add("Reshape", [f"{name}.by_text", "by_token"], f"{name}.attended")

    def activate(self, name: str, source: Normed, weight: Floats, bias: Floats) -> str:
        order, _ = self._order(name)
        spread, weight = self._spread(f"{name}.raised.spread", source, weight[order])
        product = self.graph.project(spread, [self._rounded(f"{name}.raised", weight)], f"{name}.raised.out")
        bias_name = self.graph.array(f"{name}.raised.bias", bias[order])
        # Sum, as ONNX Runtime would make BiasGelu of Add, which takes longer than both.
        return self.graph.add(
            "Gelu", [self.graph.add("Sum", [product, bias_name], f"{name}.raised.sum")], f"{name}.active"
        )

    def add_attended(self, name: str, source: str, weight: Floats, residual: str) -> str:
        product = self.graph.project(source, [self._rounded(f"{name}.attention", weight)], f"{name}.attention.out")
        return self.graph.add("Add", [product, residual], f"{name}.attention.sum")

    def add_active(self, name: str, source: str, weight: Floats, residual: str) -> str:
        order, num_rounded = self._order(name)
        weight, graph = weight[:, order], self.graph
        split = graph.constant("feed_forward.split", np.array([num_rounded, len(order) - num_rounded], np.int64))
        many, few = f"{name}.active.many", f"{name}.active.few"
        graph.add("Split", [source, split], many, few, axis=1)
        rest = self._gemm(f"{name}.few", few, weight[:, num_rounded:], residual)
        product = graph.project(many, [self._rounded(f"{name}.fed", weight[:, :num_rounded])], f"{name}.fed.out")
        return graph.add("Add", [product, rest], f"{name}.fed.sum")

    def _order(self, name: str) -> tuple[NDArray[np.intp], int]:
        """The feed-forward's columns, the largest last, and how many of them are rounded."""
        sizes = self._sizes[f"{name}.active"]
        return np.argsort(sizes, kind="stable"), len(sizes) - max(1, len(sizes) // FLOAT_COLUMNS)

    def _spread(self, output: str, source: Normed, weight: Floats) -> tuple[str, Floats]:
        """What was normalised with columns of more even sizes, and the weight that reads it so."""
        inputs, outputs = (np.maximum(each, 1e-6) for each in (self._sizes[source.out], np.abs(weight).max(axis=0)))
        factors = (inputs**SHARE / outputs ** (1 - SHARE)).astype(np.float32)
        scale, bias = source.scale / factors, source.bias / factors
        return self.graph.normalise(source.source, scale, bias, self.shape.epsilon, output), weight * factors

    def _rounded(self, name: str, weight: Floats, bias: TensorProto | None = None) -> Rounded:
        rows, columns = weight.shape
        scales = (np.maximum(np.abs(weight).max(axis=1), 1e-12) / 127).astype(np.float32)
        integers = np.rint(weight / scales[:, None]).astype(np.int8)
        return Rounded(
            rows,
            columns,
            integers=self.graph.stored(f"{name}.rounded", np.ascontiguousarray(integers.T)),
            scales=self.graph.stored(f"{name}.row_scales", scales),
            bias=bias,
        )
