"""The adapters that a folder's manifest declares."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from engine.adapters.image import ImageAdapter
from engine.adapters.loading import load_adapters
from engine.adapters.tokens import TokenAdapter
from engine.manifest import AdapterFacts, TokenizerFacts
from engine.model_folder import ModelError, ModelFolder
from engine.tensor_facts import ImageFacts, TextFacts
from tests.engine.tiny_bert import make_tokenizer
from tests.engine.tiny_tensors import graph_of, write_folder

IMAGE = ImageFacts(input="picture", size=(4, 2), layout="nhwc")
TEXT = TextFacts(ids="ids", mask="mask", max_tokens=8)
TOKENIZER = TokenizerFacts(kind="tokenizers", file="tokenizer.json")


def folder(path: Path, *, ids: int = TensorProto.INT64, content: str | None = None, **tables: Any) -> ModelFolder:
    inputs = [
        ("picture", TensorProto.FLOAT, ["n", 2, 4, 3]),
        ("ids", ids, ["n", "t"]),
        ("mask", TensorProto.INT32, ["n", "t"]),
    ]

    def fill(directory: Path) -> None:
        (directory / "tokenizer.json").write_text(make_tokenizer().to_str() if content is None else content)

    return write_folder(path / "m", graph_of(inputs, [("y", TensorProto.FLOAT, ["n"])], []), fill=fill, **tables)


def test_without_a_table_there_are_none(tmp_path: Path) -> None:
    assert load_adapters(folder(tmp_path)) == {}


def test_one_for_each_table_by_the_input_that_it_fills(tmp_path: Path) -> None:
    tables = {"adapter": AdapterFacts(image=IMAGE, text=TEXT), "tokenizer": TOKENIZER}
    adapters = load_adapters(folder(tmp_path, **tables))
    image, text = adapters["picture"], adapters["ids"]
    assert isinstance(image, ImageAdapter)
    assert isinstance(text, TokenAdapter)
    feeds = text.prepare("a", "input")
    assert (feeds["ids"].dtype, feeds["mask"].dtype) == (np.dtype(np.int64), np.dtype(np.int32))


@pytest.mark.parametrize(
    ("change", "tokenizer", "message"),
    [
        ({"ids": TensorProto.FLOAT}, TOKENIZER, "'ids' holds FP32, and tokens are INT32 or INT64"),
        ({}, TokenizerFacts(kind="tiktoken", file="tokenizer.json"), "needs a tokenizer.json"),
        ({}, TokenizerFacts(kind="tokenizers", file="other.json"), "other.json: cannot be used as a tokenizer"),
        ({"content": "{}"}, TOKENIZER, "tokenizer.json: cannot be used as a tokenizer"),
    ],
)
def test_what_is_wrong_with_a_text_adapter_is_said(
    tmp_path: Path, change: dict[str, Any], tokenizer: TokenizerFacts, message: str
) -> None:
    read = folder(tmp_path, **change)
    manifest = read.manifest.model_copy(update={"adapter": AdapterFacts(text=TEXT), "tokenizer": tokenizer})
    with pytest.raises(ModelError, match=message):
        load_adapters(ModelFolder(read.path, manifest))
