"""The tables of tensor models: what an operator may write into model.yaml, and which mistakes are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.manifest import BatchingFacts, ModelError, parse

DOCUMENT: dict[str, Any] = {
    "format": 1,
    "name": "nsfw",
    "kind": "tensor",
    "architecture": "onnx",
    "created": "2030-01-01T00:00:00+00:00",
    "source": {"file": "nsfw.onnx", "sha256": "0" * 64},
    "tensors": {
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 224, 224, 3]}],
        "outputs": [{"name": "predictions", "datatype": "FP32", "shape": [-1, 2]}],
    },
}
TENSOR = {"name": "x", "datatype": "FP32", "shape": [-1]}
IMAGE = {"input": "input", "size": [224, 224], "color": "bgr", "layout": "nhwc", "mean": [104, 117, 123]}


def read(**change: Any) -> Any:
    return parse(json.dumps({**DOCUMENT, **change}).encode(), Path("model.yaml"))


def test_a_tensor_model_needs_no_more_than_its_tensors() -> None:
    manifest = read()
    assert manifest.tensors.batched
    assert manifest.tensors.input("input").shape == (-1, 224, 224, 3)
    assert manifest.tensors.output("input") is None
    assert (manifest.version, manifest.instances, manifest.provider, manifest.tokenizer) == ("1", 1, None, None)


def test_an_operator_adds_an_adapter_labels_and_batching() -> None:
    manifest = read(
        adapter={"image": IMAGE},
        classify={"output": "predictions", "labels": ["safe", "unsafe"]},
        batching={"max_batch": 8, "window": "2ms"},
    )
    assert manifest.adapter.image.mean == (104.0, 117.0, 123.0)
    assert manifest.classify.labels == ("safe", "unsafe")
    assert manifest.batching.window_s == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("window", "seconds"), [("500us", 0.0005), ("2ms", 0.002), ("0.5s", 0.5), ("0s", 0.0), ("auto", None)]
)
def test_a_window_is_a_duration(window: str, seconds: float | None) -> None:
    assert BatchingFacts(window=window).window_s == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensors": None}, "needs the table tensors"),
        ({"adapter": {"image": {**IMAGE, "input": "inptu"}}}, "no input 'inptu'"),
        ({"adapter": {"image": {**IMAGE, "color": "grey"}}}, "mean: has 3 values, grey has 1"),
        ({"adapter": {"image": {**IMAGE, "std": [1, 0, 1]}}}, "0 cannot be divided by"),
        ({"adapter": {"image": {**IMAGE, "crop": 0.875, "resize": "pad"}}}, "no meaning where resize is pad"),
        ({"adapter": {"image": {**IMAGE, "std": [1, float("nan"), 1]}}}, "std"),
        ({"adapter": {"image": {**IMAGE, "fill": 128}}}, "fill: is of no meaning unless resize is pad"),
        ({"adapter": {"image": {**IMAGE, "widths": [224]}}}, "widths: need resize to be pad"),
        ({"adapter": {"image": {**IMAGE, "resize": "pad", "widths": [224, 64, 224]}}}, "widths: must rise"),
        ({"adapter": {"image": {**IMAGE, "resize": "pad", "widths": [64]}}}, "last must be that of size, 224"),
        ({"adapter": {"image": IMAGE, "text": {"ids": "input", "max_tokens": 8}}}, "fill the same input"),
        ({"adapter": {"text": {"ids": "input", "max_tokens": 8}}}, "needs the table tokenizer"),
        ({"adapter": {"text": {"ids": "input", "max_tokens": 8, "buckets": [8, 4]}}}, "must rise"),
        ({"adapter": {"text": {"ids": "input", "max_tokens": 8, "buckets": [4]}}}, "last must be max_tokens"),
        ({"classify": {"output": "scores"}}, "no output 'scores'"),
        ({"classify": {"output": "predictions", "labels": "../labels.txt"}}, "labels"),
        ({"batching": {"window": "2"}}, "window"),
        ({"batching": {"max_bacth": 2}}, "max_bacth"),
        ({"tensors": {**DOCUMENT["tensors"], "outputs": []}}, "outputs"),
        ({"tensors": {**DOCUMENT["tensors"], "inputs": [TENSOR, {**TENSOR}]}}, "share a name"),
        (
            {"tensors": {**DOCUMENT["tensors"], "inputs": [{"name": "x", "datatype": "FP32", "shape": [4]}]}},
            "x: axis 0 of a batched model must be -1",
        ),
        (
            {"tensors": {**DOCUMENT["tensors"], "inputs": [{"name": "x", "datatype": "fp32", "shape": [-1]}]}},
            "datatype",
        ),
        (
            {"tensors": {**DOCUMENT["tensors"], "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 0]}]}},
            "length 0",
        ),
    ],
)
def test_a_mistake_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(**change)
