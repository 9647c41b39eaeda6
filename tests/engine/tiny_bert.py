"""A made-up BERT of a few thousand weights, on disk as Hugging Face would lay it, and the float32 reference for any."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from engine.importers.bert_graph import BertShape

Weights = Mapping[str, NDArray[np.float32]]

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[",
    "]",
    "a",
    "b",
    "sep",
    "mask",
    "hello",
    "water",
    "wheel",
    "##s",
]
SHAPE = BertShape(
    vocab_size=len(WORDS),
    positions=24,
    token_types=2,
    hidden=16,
    intermediate=32,
    layers=2,
    heads=4,
    epsilon=1e-12,
)
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "vocab_size": SHAPE.vocab_size,
    "max_position_embeddings": SHAPE.positions,
    "type_vocab_size": SHAPE.token_types,
    "hidden_size": SHAPE.hidden,
    "intermediate_size": SHAPE.intermediate,
    "num_hidden_layers": SHAPE.layers,
    "num_attention_heads": SHAPE.heads,
    "layer_norm_eps": SHAPE.epsilon,
    "pad_token_id": 0,
}


def make_weights(shape: BertShape = SHAPE, seed: int = 7) -> dict[str, NDArray[np.float32]]:
    """Random weights, large enough that every part of the graph shows in the result."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(size=size) * 0.4 + ("LayerNorm.weight" in name)).astype(np.float32)
        for name, size in shape.tensors().items()
    }


def make_tokenizer(words: list[str] = WORDS) -> Tokenizer:
    """WordPiece over WORDS, framed by [CLS] and [SEP]; with truncation and padding set, as published files have it."""
    tokenizer = Tokenizer(models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(words[:5])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    return tokenizer


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[np.generic]]) -> None:
    """Write arrays as a safetensors file, in the order given."""
    names = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int64": "I64"}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, array in tensors.items():
        offsets = [at, at + array.nbytes]
        header[name] = {"dtype": names[str(array.dtype)], "shape": list(array.shape), "data_offsets": offsets}
        at += array.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def write_bert_folder(path: Path, *, weights: Weights | None = None, **changes: object) -> Path:
    """A whole Hugging Face folder; ``changes`` replace keys of config.json (None: leaves the key out)."""
    path.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    (path / "config.json").write_text(json.dumps(config))
    make_tokenizer().save(str(path / "tokenizer.json"))
    write_safetensors(path / "model.safetensors", weights if weights is not None else make_weights())
    return path


def embed_by_numpy(shape: BertShape, weights: Weights, ids: list[int]) -> NDArray[np.float32]:
    """The vector of one text, alone and unpadded: BERT as the paper has it, in float32, one line per equation."""

    def norm(x: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(shape.epsilon))
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def dense(x: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def heads(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return x.reshape(len(ids), shape.heads, -1).transpose(1, 0, 2)

    erf = np.vectorize(math.erf, otypes=[np.float32])
    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in range(shape.layers):
        name = f"encoder.layer.{layer}"
        query, key, value = (heads(dense(x, f"{name}.attention.self.{part}")) for part in ("query", "key", "value"))
        scores = query @ key.transpose(0, 2, 1) / np.float32(math.sqrt(shape.hidden / shape.heads))
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = (shares @ value).transpose(1, 0, 2).reshape(len(ids), shape.hidden)
        x = norm(x + dense(mixed, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
        raised = dense(x, f"{name}.intermediate.dense")
        active = raised * (1 + erf(raised / math.sqrt(2))) / 2
        x = norm(x + dense(active, f"{name}.output.dense"), f"{name}.output.LayerNorm")
    mean = x.mean(0)
    return (mean / np.sqrt((mean**2).sum())).astype(np.float32)
