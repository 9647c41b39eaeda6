"""The body of /v1/embeddings, both ways (OpenAI API reference, "Create embeddings").

Owns the request's shape and the answer's. Whether a text or a token can be embedded is the adapter's to say; nothing
here knows a model but by its name and dimensions.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from engine.adapters.text import Text
from engine.errors import invalid
from engine.wire.openai_fields import present, refuse_unsupported

MAX_TEXTS = 2048  # per request, OpenAI's own limit

_KNOWN = {"model", "input", "encoding_format", "dimensions"}


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A checked request body."""

    texts: Sequence[Text]  # at least one
    base64: bool  # the vectors as base64 of little-endian float32 instead of JSON numbers
    ignored: tuple[str, ...]  # fields that were accepted and not used
    dimensions: int  # of the vectors that are wanted


def parse(body: Mapping[str, Any], dimensions: int, shorter: Collection[int] = ()) -> EmbeddingRequest:
    """Check all of a request's fields but ``model``. dimensions: of the model's vectors; shorter: to which they may be
    cut. Raises RequestError (400)."""
    fields = present(body)
    ignored = refuse_unsupported(fields, _KNOWN, {})
    encoding = fields.get("encoding_format")
    if encoding not in (None, "float", "base64"):
        raise invalid('encoding_format must be "float" or "base64"', param="encoding_format")
    wanted = fields.get("dimensions")
    if wanted is not None and (type(wanted) is not int or wanted not in {dimensions, *shorter}):
        if not shorter:
            raise invalid(f"dimensions must be {dimensions} or left out: this model shortens no vectors", "dimensions")
        lengths = ", ".join(map(str, sorted({dimensions, *shorter})))
        raise invalid(f"dimensions must be one of {lengths}, to which this model's vectors can be cut", "dimensions")
    return EmbeddingRequest(_texts(fields.get("input")), encoding == "base64", ignored, wanted or dimensions)


def shorten(vectors: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
    """The first numbers of each vector, of length 1 again. vectors: float32[texts, dimensions]."""
    if vectors.shape[1] == dimensions:
        return vectors
    cut = vectors[:, :dimensions]
    lengths = np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    shortened: NDArray[np.float32] = cut / lengths
    return shortened


def render(model: str, vectors: NDArray[np.float32], num_tokens: int, *, as_base64: bool) -> bytes:
    """The answer's body. vectors: float32[texts, dimensions]; both encodings carry exactly these values."""
    rows = vectors.astype("<f4")
    embeddings: Sequence[Any]
    if as_base64:
        embeddings = [base64.b64encode(row.tobytes()).decode() for row in rows]
    else:
        embeddings = list(rows.astype(np.float64))  # written as float32 a reader's double would be another number
    answer = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": embedding}
            for index, embedding in enumerate(embeddings)
        ],
        "model": model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def _texts(value: Any) -> list[Text]:
    """One string, one array of token ids, or an array of one of the two; always as an array."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise invalid("input must be a string, an array of strings, or one or more arrays of token ids", param="input")
    if _are_ids(value):
        return [value]
    if len(value) > MAX_TEXTS:
        raise invalid(f"input has {len(value)} items; at most {MAX_TEXTS} are taken at a time", param="input")
    if all(isinstance(item, str) for item in value) or all(isinstance(item, list) and _are_ids(item) for item in value):
        return value
    raise invalid("the items of input must be all strings, or all arrays of whole numbers, or whole numbers", "input")


def _are_ids(value: list[Any]) -> bool:
    return all(type(item) is int for item in value)
