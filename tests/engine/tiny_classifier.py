"""A tiny model that classifies pictures, texts or both, by arithmetic that a test can do itself."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from engine.manifest import AdapterFacts, TokenizerFacts
from engine.model_folder import ModelFolder
from engine.tensor_facts import ClassifyFacts, ImageFacts, TextFacts
from tests.engine.tiny_bert import make_tokenizer
from tests.engine.tiny_tensors import graph_of, write_folder

SIDE = 8
IMAGE = ImageFacts(input="picture", size=(SIDE, SIDE), scale=1 / 255, resize="stretch")
TEXT = TextFacts(ids="ids", mask="mask", max_tokens=16, buckets=(4, 8, 16))
LABELS = ("red", "green", "blue")
CLASSIFY = ClassifyFacts(output="scores", softmax=True, top_k=3, labels=LABELS)


def write_classifier(path: Path, *, image: bool = True, text: bool = False, **tables: Any) -> ModelFolder:
    """A picture's score of a class is the mean of that colour; a text adds a tenth of its number of tokens to red."""
    inputs, nodes, scores = [], [], []
    if image:
        inputs.append(("picture", TensorProto.FLOAT, ["n", 3, SIDE, SIDE]))
        nodes.append(helper.make_node("ReduceMean", ["picture"], ["colors"], axes=[2, 3], keepdims=0))
        scores.append("colors")
    if text:
        inputs += [("ids", TensorProto.INT64, ["n", "t"]), ("mask", TensorProto.INT32, ["n", "t"])]
        nodes += [
            helper.make_node("Cast", ["mask"], ["ones"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["ones", "last"], ["length"], keepdims=1),
            helper.make_node("MatMul", ["length", "tenth_to_red"], ["reds"]),
        ]
        scores.append("reds")
    nodes.append(helper.make_node("Sum", scores, ["scores"]))
    model = graph_of(
        inputs,
        [("scores", TensorProto.FLOAT, ["n", 3])],
        nodes,
        last=np.array([1]),
        tenth_to_red=np.array([[0.1, 0, 0]], np.float32),
    )

    def fill(directory: Path) -> None:
        if text:
            (directory / "tokenizer.json").write_text(make_tokenizer().to_str())

    tables = {
        "adapter": AdapterFacts(image=IMAGE if image else None, text=TEXT if text else None),
        "classify": CLASSIFY,
        "tokenizer": TokenizerFacts(kind="tokenizers", file="tokenizer.json") if text else None,
        **tables,
    }
    return write_folder(path, model, fill=fill, **tables)


def plain(color: Any) -> NDArray[np.uint8]:
    """A picture of one colour."""
    return np.full((SIDE * 2, SIDE * 2, 3), color, np.uint8)


def scores_of(color: Any = (0, 0, 0), num_tokens: int = 0) -> NDArray[np.float64]:
    """What softmax makes of that picture and text."""
    logits = np.array(color) / 255 + [num_tokens / 10, 0, 0]
    powers: NDArray[np.float64] = np.exp(logits)
    return powers / powers.sum()
