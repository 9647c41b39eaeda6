"""The tables of a manifest that speak of tensors: what goes into a graph and comes out, and what is made of it.

`tensors` an importer writes and the loader holds against the graph; `adapter`, `classify` and `batching` are for the
operator to edit. Knows nothing of ONNX.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from engine.tables import FileName, Size, Table

#: The names of datatypes in the Open Inference Protocol.
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"
]
TensorName = Annotated[str, Field(min_length=1, max_length=255)]
Dimension = Annotated[int, Field(ge=-1, le=1 << 31)]
Factor = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Label = Annotated[str, Field(max_length=1024)]

#: Outputs that a fused graph has beside its own: the best scores, float32[rows, k], and the classes that have them.
SCORES, CLASSES = "headrace.scores", "headrace.classes"

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class TensorFacts(Table):
    """One input or output of a graph."""

    name: TensorName
    datatype: Datatype
    shape: Annotated[tuple[Dimension, ...], Field(max_length=16)]  # -1: any length; axis 0 is the batch when batched

    @model_validator(mode="after")
    def _has_no_empty_axis(self) -> Self:
        if 0 in self.shape:
            raise ValueError(f"{self.name}: an axis of length 0 holds nothing; -1 stands for any length")
        return self


class TensorModelFacts(Table):
    """What goes into a graph and comes out. batched: rows of all inputs and outputs lie along axis 0, one length for
    all, and what a row gives does not depend on its neighbours."""

    inputs: Annotated[tuple[TensorFacts, ...], Field(min_length=1, max_length=256)]
    outputs: Annotated[tuple[TensorFacts, ...], Field(min_length=1, max_length=256)]
    batched: bool = True
    example: dict[TensorName, tuple[Size, ...]] = Field(default_factory=dict)  # by input, a row that the graph runs

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        for tensors in (self.inputs, self.outputs):
            if len({tensor.name for tensor in tensors}) != len(tensors):
                raise ValueError("two inputs or two outputs share a name")
        for tensor in (*self.inputs, *self.outputs):
            if self.batched and tensor.shape[:1] != (-1,):
                raise ValueError(f"{tensor.name}: axis 0 of a batched model must be -1, not {tensor.shape[:1]}")
        if self.example and self.example.keys() != {tensor.name for tensor in self.inputs}:
            raise ValueError("example: must have every input and no other")
        return self

    def input(self, name: str) -> TensorFacts | None:
        """The input of that name."""
        return next((tensor for tensor in self.inputs if tensor.name == name), None)

    def output(self, name: str) -> TensorFacts | None:
        """The output of that name."""
        return next((tensor for tensor in self.outputs if tensor.name == name), None)


class ImageFacts(Table):
    """How an image becomes one row of an input: decoded, resized, then ``(value * scale - mean) / std`` by channel.

    With ``widths`` the input's width is free: a picture takes the model's height, lies at the left, and is filled up to
    the next of them; one too wide for the last is made lower.
    """

    input: TensorName
    size: tuple[Size, Size]  # width, height in pixels
    widths: Annotated[tuple[Size, ...], Field(max_length=64)] = ()  # that rows may have; (): that of the size alone
    resize: Literal["crop", "stretch", "pad"] = "crop"  # what is done about another aspect ratio
    crop: Annotated[float, Field(gt=0, le=1)] = 1.0  # the share of each side that is kept, unless it is padded
    fill: Annotated[int, Field(ge=0, le=255)] = 0  # every channel of the margin where it is padded
    filter: Literal["bilinear", "bicubic"] = "bilinear"
    max_pixels: Annotated[int, Field(ge=1, le=1 << 30)] = 50_000_000  # of a picture as it is sent
    color: Literal["rgb", "bgr", "grey"] = "rgb"  # the order of the channels
    layout: Literal["nhwc", "nchw"] = "nchw"
    scale: Factor = 1.0  # of values from 0 to 255
    mean: tuple[Factor, ...] = ()  # of each channel, after the scale; (): 0
    std: tuple[Factor, ...] = ()  # of each channel, after the scale; (): 1

    @property
    def channels(self) -> int:
        """3, or 1 for grey."""
        return 1 if self.color == "grey" else 3

    @property
    def feed(self) -> str:
        """The fused graph's input for images, uint8[rows, height, width, channels], channels in the model's order."""
        return f"{self.input}.image"

    def row(self, width: int) -> tuple[int, int, int]:
        """The shape of one row of the model's own input, with a picture of that width."""
        height, channels = self.size[1], self.channels
        return (channels, height, width) if self.layout == "nchw" else (height, width, channels)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (0, self.channels):
                raise ValueError(f"{name}: has {len(values)} values, {self.color} has {self.channels} channels")
        if self.crop != 1 and self.resize == "pad":
            raise ValueError("crop: is of no meaning where resize is pad")
        if 0 in self.std:
            raise ValueError("std: 0 cannot be divided by")
        if self.fill and self.resize != "pad":
            raise ValueError("fill: is of no meaning unless resize is pad")
        if self.widths:
            self._widths_rise()
        return self

    def _widths_rise(self) -> None:
        if self.resize != "pad":
            raise ValueError("widths: need resize to be pad")
        if list(self.widths) != sorted(set(self.widths)):
            raise ValueError("widths: must rise")
        if self.widths[-1] != self.size[0]:
            raise ValueError(f"widths: the last must be that of size, {self.size[0]}")


class TextFacts(Table):
    """How a text becomes one row of some inputs: its token ids, padded on the right to the next bucket."""

    ids: TensorName
    mask: TensorName | None = None  # 1 where there is a token
    types: TensorName | None = None  # zeros
    max_tokens: Size  # special tokens included; a longer text is refused
    buckets: tuple[Size, ...] = ()  # lengths that rows are padded to; (): max_tokens alone
    pad_id: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError("buckets: must rise")
        if self.buckets and self.buckets[-1] != self.max_tokens:
            raise ValueError(f"buckets: the last must be max_tokens, {self.max_tokens}")
        return self


class AdapterFacts(Table):
    """What requests may bring instead of tensors; inputs that no adapter fills have no place in a classification."""

    image: ImageFacts | None = None
    text: TextFacts | None = None


class ClassifyFacts(Table):
    """Which output holds one score per class, and what is answered from it."""

    output: TensorName
    softmax: bool = False  # the graph gives logits
    top_k: Annotated[int, Field(ge=1, le=1000)] = 5
    labels: FileName | Annotated[tuple[Label, ...], Field(max_length=1 << 20)] = ()  # a file with a line each, or they


class BatchingFacts(Table):
    """How rows are batched, unless the configuration says otherwise. None: its default."""

    max_batch: Annotated[int, Field(ge=1, le=4096)] | None = None  # rows in one run
    window: Annotated[str, Field(pattern=f"^(auto|{_DURATION.pattern})$")] | None = None  # how long the first may wait
    policy: Literal["adaptive", "rate"] | None = None
    cost: Literal["items", "tokens", "pixels"] | None = None

    @property
    def window_s(self) -> float | None:
        """The window in seconds; None: auto, or not said."""
        if self.window is None or (parts := _DURATION.fullmatch(self.window)) is None:
            return None
        return float(parts[1]) * _UNITS_S[parts[2]]
