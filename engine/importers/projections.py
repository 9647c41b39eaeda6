"""The forms that a weight may have, and the nodes that multiply by it or look its rows up.

A block's integers stand for exact weights and meet inputs rounded block by block (Quantised); numbers are multiplied as
they are (Plain); whole rows of eight-bit integers meet inputs rounded token by token (Rounded). Knows ONNX and ONNX
Runtime's operators; knows no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine.importers.weights import alias

MICROSOFT = "com.microsoft"
BLOCK = 32


@dataclass(frozen=True, slots=True)
class Quantised:
    """A weight [rows, columns] in blocks along the columns, as MatMulNBits takes it."""

    rows: int
    columns: int
    bits: int
    integers: TensorProto  # uint8 [rows, columns/block, block·bits/8]
    scales: TensorProto  # float32 [rows, columns/block]
    centres: TensorProto | None = None  # float32 [rows, columns/32], added to every weight of a block; block is 32
    block: int = BLOCK
    bias: TensorProto | None = None  # float32 [rows]


@dataclass(frozen=True, slots=True)
class Plain:
    """A weight [rows, columns] in float32."""

    rows: int
    columns: int
    values: TensorProto
    bias: TensorProto | None = None  # float32 [rows]


@dataclass(frozen=True, slots=True)
class Rounded:
    """A weight [rows, columns] as eight-bit integers with one scale a row; its input is rounded to eight bits, too."""

    rows: int
    columns: int
    integers: TensorProto  # int8 [columns, rows], -127 to 127
    scales: TensorProto  # float32 [rows]
    bias: TensorProto | None = None  # float32 [rows]
    rotation: TensorProto | None = None  # float32 [b, b]: what each b neighbours of the input are multiplied by first


Readable = Quantised | Plain  # what rows can be looked up in
Weight = Readable | Rounded


class Graph:
    """Nodes and initializers as they are added; a value is known by its name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}
        self._sums: dict[str, str] = {}
        self._rounded: dict[str, tuple[str, str]] = {}

    def add(self, op: str, inputs: Sequence[str], output: str, *more: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [output, *more], name=output, domain=domain, **attributes))
        return output

    def tensor(self, tensor: TensorProto) -> str:
        self.initializers[tensor.name] = tensor
        return str(tensor.name)

    def constant(self, name: str, value: NDArray[np.generic]) -> str:
        return self.tensor(numpy_helper.from_array(value, name))

    def project(self, source: str, weights: Sequence[Weight], output: str) -> str:
        """Multiply by each weight; the results lie side by side along the last axis."""
        if len(weights) == 1:
            return self._multiply(source, weights[0], output)
        parts = [self._multiply(source, weight, f"{output}.{at}") for at, weight in enumerate(weights)]
        return self.add("Concat", parts, output, axis=-1)

    def _multiply(self, source: str, weight: Weight, output: str) -> str:
        bias = [] if weight.bias is None else [self.tensor(weight.bias)]
        if isinstance(weight, Plain):
            return self.add("Gemm", [source, self.tensor(weight.values), *bias], output, transB=1)
        if isinstance(weight, Rounded):
            return self._multiply_rounded(source, weight, output, bias)
        product = output if weight.centres is None else f"{output}.product"
        unused = ["", ""] if bias else []  # zero points and the order of columns
        self.add(
            "MatMulNBits",
            [source, self.tensor(weight.integers), self.tensor(weight.scales), *unused, *bias],
            product,
            domain=MICROSOFT,
            K=weight.columns,
            N=weight.rows,
            bits=weight.bits,
            block_size=weight.block,
            accuracy_level=4,
        )
        if weight.centres is not None:
            sums = self._block_sums(source, weight.columns)
            self.add("Gemm", [sums, self.tensor(weight.centres), product], output, transB=1)
        return output

    def _multiply_rounded(self, source: str, weight: Rounded, output: str, bias: Sequence[str]) -> str:
        """Integers times integers, which the processor does several times as fast as anything else."""
        integers, steps = self._round(self._rotate(source, weight))
        one, middle = self._scalar("one", np.float32(1)), self._scalar("middle", np.uint8(128))
        inputs = [integers, self.tensor(weight.integers), one, self.tensor(weight.scales), middle]
        product = self.add("MatMulIntegerToFloat", inputs, f"{output}.product", domain=MICROSOFT)
        scaled = self.add("Mul", [product, steps], f"{output}.scaled" if bias else output)
        return self.add("Add", [scaled, *bias], output) if bias else scaled

    def _round(self, source: str) -> tuple[str, str]:
        """A value [T, columns] as uint8 about 128, and each token's step [T, 1]; once for all projections of it."""
        if source not in self._rounded:
            axis = self.constant("last_axis", np.array([-1], np.int64))
            sizes = self.add("Abs", [source], f"{source}.sizes")
            most = self.add("ReduceMax", [sizes, axis], f"{source}.most", keepdims=1)
            raw = self.add("Mul", [most, self._scalar("per_127", np.float32(1 / 127))], f"{source}.raw_steps")
            steps = self.add("Max", [raw, self._scalar("least_step", np.float32(1e-12))], f"{source}.steps")
            inputs = [
                self.add("Div", [source, steps], f"{source}.in_steps"),
                self._scalar("one", np.float32(1)),
                self._scalar("middle", np.uint8(128)),
            ]
            self._rounded[source] = self.add("QuantizeLinear", inputs, f"{source}.rounded"), steps
        return self._rounded[source]

    def _rotate(self, source: str, weight: Rounded) -> str:
        if weight.rotation is None:
            return source
        size = weight.rotation.dims[0]
        narrow = self.constant(f"neighbours.{size}", np.array([-1, size], np.int64))
        wide = self.constant(f"columns.{weight.columns}", np.array([-1, weight.columns], np.int64))
        parts = self.add("Reshape", [source, narrow], f"{source}.neighbours")
        turned = self.add("MatMul", [parts, self.tensor(weight.rotation)], f"{source}.turned")
        return self.add("Reshape", [turned, wide], f"{source}.rotated")

    def _scalar(self, name: str, value: np.generic) -> str:
        return self.constant(name, np.array(value))

    def _block_sums(self, source: str, columns: int) -> str:
        """The sums [T, columns/32] of the blocks of a value, computed once for all projections of it."""
        if source not in self._sums:
            blocks = self._in_blocks(source, columns)
            axis = self.constant("last_axis", np.array([-1], np.int64))
            self._sums[source] = self.add("ReduceSum", [blocks, axis], f"{source}.sums", keepdims=0)
        return self._sums[source]

    def look_up(self, weight: Readable, ids: str, output: str) -> str:
        """Rows of a weight as float32."""
        if isinstance(weight, Plain):
            return self.add("Gather", [self.tensor(weight.values), ids], output)
        flat = alias(weight.integers, f"{weight.integers.name}.rows", (weight.rows, weight.columns * weight.bits // 8))
        attributes = {"bits": weight.bits, "block_size": weight.block, "gather_axis": 0, "quantize_axis": 1}
        inputs = [self.tensor(flat), ids, self.tensor(weight.scales)]
        if weight.centres is None:
            return self.add("GatherBlockQuantized", inputs, output, domain=MICROSOFT, **attributes)
        centred = self.add("GatherBlockQuantized", inputs, f"{output}.centred", domain=MICROSOFT, **attributes)
        blocks = self._in_blocks(centred, weight.columns)
        centres = self.add("Gather", [self.tensor(weight.centres), ids], f"{output}.centres")
        axis = self.constant("last_axis", np.array([-1], np.int64))
        column = self.add("Unsqueeze", [centres, axis], f"{output}.centres_column")
        exact = self.add("Add", [blocks, column], f"{output}.exact")
        width = self.constant(f"columns.{weight.columns}", np.array([-1, weight.columns], np.int64))
        return self.add("Reshape", [exact, width], output)

    def _in_blocks(self, source: str, columns: int) -> str:
        shape = self.constant(f"blocks.{columns}", np.array([-1, columns // BLOCK, BLOCK], np.int64))
        return self.add("Reshape", [source, shape], f"{source}.blocks")
