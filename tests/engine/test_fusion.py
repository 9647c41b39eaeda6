"""Fused preprocessing gives what the usual pipeline of arrays gives, and leaves plain tensors as they were."""

import json
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

from engine.fusion import empty_feeds, fuse
from engine.manifest import Manifest
from engine.tensor_facts import CLASSES, SCORES, ClassifyFacts, ImageFacts

WIDTH, HEIGHT, NUM_CLASSES = 6, 4, 7
DTYPES = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.UINT8: np.uint8}


def identity(facts: ImageFacts, width: Any = "W") -> onnx.ModelProto:
    """Gives back the rows that it reads."""
    shape = ["N", HEIGHT, width, facts.channels] if facts.layout == "nhwc" else ["N", facts.channels, HEIGHT, width]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("input", "rows")]
    node = helper.make_node("Identity", ["input"], ["rows"])
    model = helper.make_graph([node], "tiny", infos[:1], infos[1:])
    return helper.make_model(model, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def graph(facts: ImageFacts, type_: int = TensorProto.FLOAT, *, opset: int = 17) -> onnx.ModelProto:
    """Gives back the rows that it reads, and one score for each class made of them."""
    shape = [HEIGHT, WIDTH, facts.channels] if facts.layout == "nhwc" else [facts.channels, HEIGHT, WIDTH]
    size = HEIGHT * WIDTH * facts.channels
    weights = np.random.default_rng(1).normal(size=(size, NUM_CLASSES)).astype(np.float32) / size
    nodes = [
        helper.make_node("Identity", ["input"], ["rows"]),
        helper.make_node("Cast", ["input"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["floats"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["logits"]),
    ]
    model = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("input", type_, ["N", *shape])],
        [
            helper.make_tensor_value_info("rows", type_, ["N", *shape]),
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", NUM_CLASSES]),
        ],
        [numpy_helper.from_array(weights, "weights")],
    )
    return helper.make_model(model, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def manifest(image: ImageFacts | None = None, classify: ClassifyFacts | None = None) -> Manifest:
    adapter = {"image": image.model_dump()} if image else None
    shape = [-1, -1, -1, -1]
    return Manifest.model_validate_json(
        json.dumps(
            {
                "name": "tiny",
                "kind": "tensor",
                "architecture": "onnx",
                "created": "2030-01-01T00:00:00+00:00",
                "source": {"file": "tiny.onnx", "sha256": "0" * 64},
                "tensors": {
                    "inputs": [{"name": "input", "datatype": "FP32", "shape": shape}],
                    "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, NUM_CLASSES]}],
                },
                "adapter": adapter,
                "classify": classify.model_dump() if classify else None,
            }
        )
    )


def session(model: onnx.ModelProto) -> InferenceSession:
    onnx.checker.check_model(model, full_check=True)
    return InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def unfused(images: NDArray[np.uint8], facts: ImageFacts) -> NDArray[np.float32]:
    """The usual pipeline, an image at a time."""
    rows = []
    for image in images:
        row = image.astype(np.float32) * facts.scale
        row = (row - np.array(facts.mean or 0, np.float32)) / np.array(facts.std or 1, np.float32)
        rows.append(row.transpose(2, 0, 1) if facts.layout == "nchw" else row)
    return np.stack(rows).astype(np.float32)


def pixels(rows: int, channels: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (rows, HEIGHT, WIDTH, channels)).astype(np.uint8)


@st.composite
def image_facts(draw: st.DrawFn) -> ImageFacts:
    color = draw(st.sampled_from(["rgb", "bgr", "grey"]))
    channels = 1 if color == "grey" else 3
    by_channel = st.one_of(st.just(()), st.tuples(*[st.floats(0.25, 2.0)] * channels))
    return ImageFacts(
        input="input",
        size=(WIDTH, HEIGHT),
        color=color,
        layout=draw(st.sampled_from(["nhwc", "nchw"])),
        scale=draw(st.sampled_from([1.0, 1 / 255, 1 / 127.5])),
        mean=draw(by_channel),
        std=draw(by_channel),
    )


@settings(max_examples=30, deadline=None)
@given(facts=image_facts(), rows=st.integers(1, 3))
def test_equals_the_unfused_pipeline(facts: ImageFacts, rows: int) -> None:
    images = pixels(rows, facts.channels)
    wanted = unfused(images, facts)
    plain = np.empty((0, *wanted.shape[1:]), np.float32)
    fused = session(fuse(graph(facts), manifest(facts)))
    given_rows, logits = fused.run(["rows", "logits"], {"input": plain, facts.feed: images})
    np.testing.assert_allclose(given_rows, wanted, atol=1e-3, rtol=1e-5)
    alone = session(graph(facts)).run(["logits"], {"input": wanted})[0]
    np.testing.assert_allclose(logits, alone, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_widths_of_their_own(layout: Any) -> None:
    """Beside no rows of another width, which the runtime passes over."""
    facts = ImageFacts(
        input="input",
        size=(WIDTH, HEIGHT),
        widths=(2, WIDTH),
        resize="pad",
        layout=layout,
        scale=1 / 255,
        mean=(0.5, 0.4, 0.3),
        std=(0.5, 0.6, 0.7),
    )
    fused = session(fuse(identity(facts), manifest(facts)))
    no_rows = np.empty((0, *facts.row(WIDTH)), np.float32)
    for width in facts.widths:
        images = pixels(2, 3)[:, :, :width]
        wanted = unfused(images, facts)
        (rows,) = fused.run(["rows"], {"input": no_rows, facts.feed: images})
        np.testing.assert_allclose(rows, wanted, atol=1e-6)
        (plain,) = fused.run(["rows"], {"input": wanted, **empty_feeds(manifest(facts))})
        np.testing.assert_array_equal(plain, wanted)
    with pytest.raises(ValueError, match="the adapter makes"):
        fuse(identity(facts, WIDTH), manifest(facts))


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_plain_tensors_go_in_as_before(layout: Any) -> None:
    facts = ImageFacts(input="input", size=(WIDTH, HEIGHT), layout=layout, scale=1 / 255)
    rows = unfused(pixels(3, 3), facts)
    fused = session(fuse(graph(facts), manifest(facts)))
    alone = session(graph(facts)).run(None, {"input": rows})
    for given_, wanted in zip(
        fused.run(["rows", "logits"], {"input": rows, **empty_feeds(manifest(facts))}), alone, strict=True
    ):
        np.testing.assert_array_equal(given_, wanted)


@pytest.mark.parametrize("type_", [TensorProto.FLOAT16, TensorProto.UINT8])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_other_types_of_the_input(type_: int, layout: Any) -> None:
    scale = 1 / 255 if type_ == TensorProto.FLOAT16 else 1.0
    facts = ImageFacts(input="input", size=(WIDTH, HEIGHT), layout=layout, scale=scale)
    images = pixels(2, 3)
    wanted = unfused(images, facts).astype(DTYPES[type_])
    fused = session(fuse(graph(facts, type_), manifest(facts)))
    plain = np.empty((0, *wanted.shape[1:]), DTYPES[type_])
    np.testing.assert_allclose(fused.run(["rows"], {"input": plain, facts.feed: images})[0], wanted, atol=1e-3)


@pytest.mark.parametrize("opset", [11, 12, 13, 17])
@pytest.mark.parametrize("softmax", [True, False])
def test_the_best_classes_come_first(softmax: bool, opset: int) -> None:
    facts = ImageFacts(input="input", size=(WIDTH, HEIGHT), scale=1 / 255)
    classify = ClassifyFacts(output="logits", softmax=softmax, top_k=3)
    fused = session(fuse(graph(facts, opset=opset), manifest(facts, classify)))
    rows = unfused(pixels(4, 3), facts)
    feeds = {"input": rows, **empty_feeds(manifest(facts))}
    logits, scores, classes = fused.run(["logits", SCORES, CLASSES], feeds)
    powers = np.exp(logits)
    wanted = powers / powers.sum(axis=1, keepdims=True) if softmax else logits
    order = np.argsort(-wanted, axis=1)[:, :3]
    np.testing.assert_array_equal(classes, order)
    np.testing.assert_allclose(scores, np.take_along_axis(wanted, order, 1), atol=1e-6)


def test_no_more_classes_than_there_are() -> None:
    facts = ImageFacts(input="input", size=(WIDTH, HEIGHT))
    fused = session(fuse(graph(facts), manifest(None, ClassifyFacts(output="logits", top_k=100))))
    rows = unfused(pixels(1, 3), facts)
    assert fused.run([CLASSES], {"input": rows})[0].shape == (1, NUM_CLASSES)


def test_a_nested_graph_reads_the_rows_of_images_too() -> None:
    facts = ImageFacts(input="input", size=(WIDTH, HEIGHT))
    model = graph(facts)
    shape = ["M", 3, HEIGHT, WIDTH]
    out = helper.make_tensor_value_info("taken", TensorProto.FLOAT, shape)
    branch = [helper.make_graph([helper.make_node(op, ["input"], ["taken"])], op, [], [out]) for op in ("Neg", "Abs")]
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.append(helper.make_node("If", ["yes"], ["nested"], then_branch=branch[0], else_branch=branch[1]))
    model.graph.output.append(helper.make_tensor_value_info("nested", TensorProto.FLOAT, shape))
    fused = session(fuse(model, manifest(facts)))
    images = pixels(2, 3)
    feeds = {"input": np.empty((0, 3, HEIGHT, WIDTH), np.float32), facts.feed: images}
    np.testing.assert_allclose(fused.run(["nested"], feeds)[0], -unfused(images, facts))


def test_nothing_to_fuse_leaves_the_graph_alone() -> None:
    model = graph(ImageFacts(input="input", size=(WIDTH, HEIGHT)))
    assert fuse(model, manifest()) is model
    assert empty_feeds(manifest()) == {}


def wrong(**change: Any) -> ImageFacts:
    return ImageFacts(**{"input": "input", "size": (WIDTH, HEIGHT), **change})


@pytest.mark.parametrize(
    ("model", "facts", "message"),
    [
        (graph(wrong(), opset=10), wrong(), "operator set 10"),
        (graph(wrong()), wrong(size=(WIDTH, 5)), r"shape \[any, 3, 4, 6\]; the adapter makes \[any, 3, 5, 6\]"),
        (graph(wrong()), wrong(layout="nhwc"), r"the adapter makes \[any, 4, 6, 3\]"),
        (graph(wrong()), wrong(color="grey"), r"the adapter makes \[any, 1, 4, 6\]"),
        (graph(wrong(), TensorProto.UINT8), wrong(scale=0.5), "holds uint8"),
        (graph(wrong(), TensorProto.INT64), wrong(), "neither floats nor uint8"),
    ],
)
def test_what_does_not_fit_is_said(model: onnx.ModelProto, facts: ImageFacts, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fuse(model, manifest(facts))


def test_an_output_without_classes_gives_none() -> None:
    model = graph(wrong())
    classify = ClassifyFacts(output="rows")
    facts = manifest(None, ClassifyFacts(output="logits")).model_copy(update={"classify": classify})
    with pytest.raises(ValueError, match="'rows' must be of floats"):
        fuse(model, facts)
