"""The decode graph of a llama-shaped language model, over weights in whatever exact form they came.

Tokens of all rows lie packed, [T, hidden], so nothing but attention pays for padding: around it one Gather makes
[B, S, ·] and one brings the result back. Logits are computed for the rows' last tokens only, and TopK and the logsumexp
stand in the graph because they cost numpy several milliseconds a step. Knows ONNX; knows no file format and no runtime.

Inputs     tokens int64 [T], gather int64 [B, S] (packed index of each padded place), scatter int64 [T] (its inverse,
           into B·S), last int64 [R] (places of `tokens` whose logits are wanted), seqlens_k int32 [B] (tokens held
           after the step, less one), query_seqlens int32 [B] (new tokens; 0 for an idle row), total int32 (greatest
           length after the step), past_key.N and past_value.N float32 or int8 [B, kv_heads, C, head_dim]
Outputs    top_ids int64 [R, K], top_logits float32 [R, K], logsumexp float32 [R, 1], logits float32 [R, V],
           present_key.N and present_value.N, to be bound to the buffers of the past
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from engine.importers.projections import MICROSOFT, Graph, Readable, Weight


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a llama-shaped model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocab_size: int
    norm_epsilon: float
    top_k: int
    interleaved: bool = True  # whether neighbours of a head are rotated together, or else its halves


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer; each group of projections shares its input and lies one after another."""

    attention_norm: TensorProto
    query_key_value: Sequence[Weight]
    attention_output: Weight
    feed_forward_norm: TensorProto
    gate_up: Sequence[Weight]
    down: Weight
    query_key_norm: TensorProto | None = None  # float32 [heads + kv_heads, head_dim], gains of each head's RMS norm
    cache_steps: tuple[TensorProto, TensorProto] | None = None  # of int8 keys and values, [1, kv_heads, 1, head_dim]


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a model. A head of None means that the embedding serves as the head too.

    rotation: float32 [hidden, hidden], by which the embedding is multiplied where the other weights are meant for it.
    """

    embedding: Readable
    layers: Sequence[Layer]
    output_norm: TensorProto
    head: Weight | None
    rotation: TensorProto | None = None


def build_graph(shape: Shape, weights: Weights, cosines: TensorProto, sines: TensorProto) -> onnx.ModelProto:
    """Build the graph. `cosines` and `sines` are float32 [C, head_dim/2]."""
    graph = Graph()
    epsilon = shape.norm_epsilon
    residual = graph.look_up(weights.embedding, "tokens", "embedding")
    if weights.rotation is not None:
        residual = graph.add("MatMul", [residual, graph.tensor(weights.rotation)], "embedding.rotated")
    delta = ""
    rotary = [graph.tensor(cosines), graph.tensor(sines)]
    last_scatter = graph.add("Gather", ["scatter", "last"], "last_scatter")
    for number, layer in enumerate(weights.layers):
        name = f"layer.{number}"
        normed, residual = _normalise(graph, residual, delta, layer.attention_norm, epsilon, f"{name}.attention_norm")
        packed = graph.project(normed, layer.query_key_value, f"{name}.query_key_value")
        if layer.query_key_norm is not None:
            packed = _normalise_heads(graph, shape, packed, layer.query_key_norm, name)
        final = number == shape.layers - 1  # after its attention only the last tokens matter
        steps = [] if layer.cache_steps is None else [graph.tensor(step) for step in layer.cache_steps]
        mixed = _attend(graph, shape, number, packed, rotary, steps, last_scatter if final else "scatter")
        if final:
            residual = graph.add("Gather", [residual, "last"], "last_residual")
        delta = graph.project(mixed, [layer.attention_output], f"{name}.attention_output")
        normed, residual = _normalise(
            graph, residual, delta, layer.feed_forward_norm, epsilon, f"{name}.feed_forward_norm"
        )
        delta = _feed_forward(graph, normed, layer, name)
    normed, _ = _normalise(graph, residual, delta, weights.output_norm, epsilon, "output_norm")
    logits = graph.project(normed, [weights.head or weights.embedding], "logits")
    top_k = graph.constant("top_k", np.array([shape.top_k], np.int64))
    graph.add("TopK", [logits, top_k], "top_logits", "top_ids", axis=-1, largest=1, sorted=1)
    _log_sum_exp(graph, logits, "logsumexp")
    return _model(shape, graph, TensorProto.FLOAT if weights.layers[0].cache_steps is None else TensorProto.INT8)


def _normalise(
    graph: Graph, residual: str, delta: str, gain: TensorProto, epsilon: float, name: str
) -> tuple[str, str]:
    """RMS norm of residual + delta; returns it and the sum, which is the next residual."""
    gains = graph.tensor(gain)
    if not delta:
        return graph.add("SimplifiedLayerNormalization", [residual, gains], name, epsilon=epsilon, axis=-1), residual
    total = f"{name}.residual"
    inputs = [residual, delta, gains]
    graph.add("SkipSimplifiedLayerNormalization", inputs, name, "", "", total, domain=MICROSOFT, epsilon=epsilon)
    return name, total


def _normalise_heads(graph: Graph, shape: Shape, packed: str, gains: TensorProto, name: str) -> str:
    """RMS norm of every head of queries and keys, values left alone; the attention kernel's own is not on the CPU."""
    heads, kept = shape.heads + shape.kv_heads, shape.kv_heads * shape.head_dim
    normed, values = f"{name}.query_key", f"{name}.value"
    sizes = graph.constant("query_key_sizes", np.array([heads * shape.head_dim, kept], np.int64))
    graph.add("Split", [packed, sizes], normed, values, axis=-1)
    by_head = graph.constant("by_head", np.array([-1, heads, shape.head_dim], np.int64))
    side_by_side = graph.constant("side_by_side", np.array([-1, heads * shape.head_dim], np.int64))
    split = graph.add("Reshape", [normed, by_head], f"{normed}.by_head")
    inputs = [split, graph.tensor(gains)]
    scaled = graph.add("SimplifiedLayerNormalization", inputs, f"{normed}.norm", epsilon=shape.norm_epsilon, axis=-1)
    joined = graph.add("Reshape", [scaled, side_by_side], f"{normed}.normed")
    return graph.add("Concat", [joined, values], f"{name}.query_key_value_normed", axis=-1)


def _attend(
    graph: Graph, shape: Shape, layer: int, packed: str, rotary: Sequence[str], steps: Sequence[str], places: str
) -> str:
    """Attention of packed queries, keys and values [T, ·] over the slots' memory; returns packed rows at `places`.

    steps: of int8 keys and of int8 values; of none, the memory is float32.
    """
    name = f"layer.{layer}"
    padded = graph.add("Gather", [packed, "gather"], f"{name}.padded")
    past = [f"past_key.{layer}", f"past_value.{layer}"]
    # Key and value are empty because the query carries all three; after the rotary tables and after the steps come
    # inputs that are not used.
    unused, steps_or_none = [""] * 3, steps or ["", ""]
    inputs = [padded, "", "", *past, "seqlens_k", "total", *rotary, *unused, *steps_or_none, "", "", "query_seqlens"]
    eight_bits = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
    attended = graph.add(
        "GroupQueryAttention",
        inputs,
        f"{name}.attended",
        f"present_key.{layer}",
        f"present_value.{layer}",
        domain=MICROSOFT,
        num_heads=shape.heads,
        kv_num_heads=shape.kv_heads,
        do_rotary=1,
        rotary_interleaved=int(shape.interleaved),
        **(eight_bits if steps else {}),
    )
    width = graph.constant("attended_shape", np.array([-1, shape.heads * shape.head_dim], np.int64))
    flat = graph.add("Reshape", [attended, width], f"{name}.attended_flat")
    return graph.add("Gather", [flat, places], f"{name}.attended_packed")


def _feed_forward(graph: Graph, normed: str, layer: Layer, name: str) -> str:
    """SwiGLU: down(silu(gate) · up)."""
    both = graph.project(normed, layer.gate_up, f"{name}.gate_up")
    gate, up = f"{name}.gate", f"{name}.up"
    graph.add("Split", [both], gate, up, axis=-1, num_outputs=2)
    active = graph.add("QuickGelu", [gate], f"{name}.silu", domain=MICROSOFT, alpha=1.0)  # x · sigmoid(alpha x)
    product = graph.add("Mul", [active, up], f"{name}.product")
    return graph.project(product, [layer.down], f"{name}.down")


def _log_sum_exp(graph: Graph, logits: str, output: str) -> str:
    """The logsumexp [R, 1], as the distance of a logit from its log-probability.

    LogSoftmax is vectorised where ReduceLogSumExp is not: 0.1 against 0.5 ms for a row of 49,152, and more exact.
    """
    column = graph.constant("first_column", np.array([0], np.int64))
    log_probabilities = graph.add("LogSoftmax", [logits], f"{output}.log_probabilities", axis=-1)
    one_logit = graph.add("Gather", [logits, column], f"{output}.logit", axis=1)
    its_log = graph.add("Gather", [log_probabilities, column], f"{output}.log", axis=1)
    return graph.add("Sub", [one_logit, its_log], output)


def _model(shape: Shape, graph: Graph, cache_type: int) -> onnx.ModelProto:
    def value(name: str, element: int, *dims: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, element, dims)

    cache = ("B", shape.kv_heads, "C", shape.head_dim)
    caches = [f"{part}.{layer}" for layer in range(shape.layers) for part in ("key", "value")]
    inputs = [
        value("tokens", TensorProto.INT64, "T"),
        value("gather", TensorProto.INT64, "B", "S"),
        value("scatter", TensorProto.INT64, "T"),
        value("last", TensorProto.INT64, "R"),
        value("seqlens_k", TensorProto.INT32, "B"),
        value("query_seqlens", TensorProto.INT32, "B"),
        value("total", TensorProto.INT32),
        *(value(f"past_{name}", cache_type, *cache) for name in caches),
    ]
    outputs = [
        value("top_ids", TensorProto.INT64, "R", shape.top_k),
        value("top_logits", TensorProto.FLOAT, "R", shape.top_k),
        value("logsumexp", TensorProto.FLOAT, "R", 1),
        value("logits", TensorProto.FLOAT, "R", shape.vocab_size),
        *(value(f"present_{name}", cache_type, *cache) for name in caches),
    ]
    body = helper.make_graph(graph.nodes, "decode", inputs, outputs, initializer=list(graph.initializers.values()))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(body, opset_imports=opsets, ir_version=10, producer_name="headrace")
