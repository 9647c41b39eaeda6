"""The adapters of a tensor model's folder, as its manifest declares them."""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import Tokenizer

from engine.adapters.adapter import Adapter
from engine.adapters.image import ImageAdapter
from engine.adapters.tokens import TokenAdapter
from engine.adapters.whole_text import WholeText
from engine.manifest import TensorModelFacts
from engine.model_folder import MANIFEST, ModelError, ModelFolder
from engine.tensor_facts import ImageFacts, TextFacts
from engine.tensors.datatypes import DTYPES

_INTEGERS = {"INT32", "INT64"}


def load_adapters(folder: ModelFolder) -> dict[str, Adapter]:
    """By the name of the input that each fills; a text's is that of its ids. Raises ModelError."""
    declared = folder.manifest.adapter
    adapters: dict[str, Adapter] = {}
    if declared is not None and declared.image is not None:
        adapters[declared.image.input] = _image(declared.image, folder.tensors)
    if declared is not None and declared.text is not None:
        adapters[declared.text.ids] = _text(declared.text, folder)
    return adapters


def _image(facts: ImageFacts, tensors: TensorModelFacts) -> ImageAdapter:
    plain = next(tensor for tensor in tensors.inputs if tensor.name == facts.input)
    return ImageAdapter(facts, np.empty((0, *facts.row(facts.size[0])), DTYPES[plain.datatype]))


def _text(facts: TextFacts, folder: ModelFolder) -> TokenAdapter:
    names = [name for name in (facts.ids, facts.mask, facts.types) if name is not None]
    tensors = [tensor for tensor in folder.tensors.inputs if tensor.name in names]
    for tensor in tensors:
        if tensor.datatype not in _INTEGERS:
            raise ModelError(
                f"{folder.path}: the input {tensor.name!r} holds {tensor.datatype}, and tokens are INT32 or INT64;"
                f" correct adapter.text in {MANIFEST}"
            )
    tokenizer = folder.manifest.tokenizer
    if tokenizer is None or tokenizer.kind != "tokenizers":
        raise ModelError(
            f"{folder.path}: its text adapter needs a tokenizer.json; add the table tokenizer to {MANIFEST}"
        )
    path = folder.path / tokenizer.file  # an operator may have put it there
    try:
        read: Any = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare Exception for a malformed file
        raise ModelError(f"{path}: cannot be used as a tokenizer ({error}); import the model again") from error
    text = WholeText(read, max_tokens=facts.max_tokens)
    return TokenAdapter(facts, text, {tensor.name: DTYPES[tensor.datatype] for tensor in tensors})
