"""What the peers of bench/batching.py serve: a model folder's graph and tokenizer, as one writes it with both packages.

Runs in the peers' environments, and so imports nothing that they may lack. Knows nothing of how a peer is served.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

PATH = "/v1/embeddings"


class Encoder:
    """A loaded text encoder."""

    def __init__(self, folder: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self._session = onnxruntime.InferenceSession(
            f"{folder}/model.onnx", options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer: Any = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of texts, padded to the longest: float32[texts, dimensions]."""
        rows = [self._tokenizer.encode(text).ids for text in texts]
        lengths = np.array([len(row) for row in rows], np.int32)
        token_ids = np.zeros((len(rows), lengths.max()), np.int32)
        for padded, row in zip(token_ids, rows, strict=True):
            padded[: len(row)] = row
        vectors: NDArray[np.float32] = self._session.run(None, {"token_ids": token_ids, "lengths": lengths})[0]
        return vectors


def answer(model: str, vector: NDArray[np.float32]) -> Mapping[str, Any]:
    """An answer of the form that OpenAI documents, for one text."""
    embedding = base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": embedding}],
        "model": model,
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }
