"""What the peers of bench/batching.py and bench/classify.py serve: a model folder's graph, as one writes it with ONNX
Runtime and its usual companions.

Runs in the peers' environments, and so imports nothing that they may lack. Owns what becomes of the bodies of requests
that share a run; knows nothing of how a peer is served.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from bench import unfused

Answer = Mapping[str, Any]


class Model(Protocol):
    """One that was loaded from a folder."""

    def answers(self, bodies: Sequence[Any]) -> Sequence[Answer]:
        """To the body of each request its own answer, from one run."""
        ...


class Encoder:
    """A text encoder: JSON as OpenAI documents it, one text a request."""

    PATH = "/v1/embeddings"
    BODY: Any = dict[str, Any]

    def __init__(self, folder: str, threads: int) -> None:
        self._session = unfused.session(Path(folder), threads)
        self._masked = "attention_mask" in {tensor.name for tensor in self._session.get_inputs()}
        self._tokenizer: Any = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def answers(self, bodies: Sequence[Mapping[str, Any]]) -> Sequence[Answer]:
        """As Model's: texts are padded to the longest."""
        rows = [self._tokenizer.encode(body["input"]).ids for body in bodies]
        lengths = np.array([len(row) for row in rows], np.int32)
        token_ids = np.zeros((len(rows), lengths.max()), np.int64 if self._masked else np.int32)
        for padded, row in zip(token_ids, rows, strict=True):
            padded[: len(row)] = row
        if self._masked:  # as it is exported
            mask = (np.arange(token_ids.shape[1]) < lengths[:, None]).astype(np.int64)
            feeds = {"input_ids": token_ids, "attention_mask": mask}
        else:  # as Headrace imports it
            feeds = {"token_ids": token_ids, "lengths": lengths}
        vectors = self._session.run(None, feeds)[0]
        return [_embedding(body["model"], vector) for body, vector in zip(bodies, vectors, strict=True)]


class Classifier:
    """Open NSFW: a picture's file as the body."""

    PATH = "/v1/classify"
    BODY: Any = bytes
    LABELS = ("sfw", "nsfw")

    def __init__(self, folder: str, threads: int) -> None:
        self._session = unfused.session(Path(folder), threads)
        self._input = self._session.get_inputs()[0].name

    def answers(self, bodies: Sequence[bytes]) -> Sequence[Answer]:
        """As Model's."""
        pixels = np.stack([unfused.preprocess(body) for body in bodies])
        return [self._classes(scores) for scores in self._session.run(None, {self._input: pixels})[0].tolist()]

    def _classes(self, scores: Sequence[float]) -> Answer:
        best = sorted(zip(scores, self.LABELS, strict=True), reverse=True)
        classes = [{"label": label, "score": score} for score, label in best]
        return {"object": "list", "data": [{"object": "classification", "index": 0, **classes[0], "classes": classes}]}


def model_of(folder: str) -> type[Encoder] | type[Classifier]:
    """What serves the folder."""
    return Encoder if (Path(folder) / "tokenizer.json").exists() else Classifier


def _embedding(model: str, vector: Any) -> Answer:
    embedding = base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": embedding}],
        "model": model,
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }
