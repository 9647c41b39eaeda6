"""A BERT sentence encoder as Hugging Face lays it on disk -> a model folder.

Owns what such a directory must hold and say, and refuses what the graph would compute wrongly, before any work. The
arithmetic is in bert_graph, the container in safetensors.

    config.json, model.safetensors, tokenizer.json            needed
    modules.json, 1_Pooling/config.json, sentence_bert_config.json    of sentence-transformers, read where present
    README.md                                                 its header may name the weights' license

Without modules.json the model is served with mean pooling; the vectors are of length 1 in any case.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine import model_folder
from engine.adapters.text import TextAdapter
from engine.importers import bert_graph
from engine.importers.bert_reading import calibration_rows, column_sizes
from engine.importers.bert_rounded import RoundedProducts
from engine.importers.hugging_face_files import read_json, read_license
from engine.importers.safetensors import TensorFile
from engine.importers.weights import WeightsFile
from engine.manifest import EmbeddingFacts, Manifest, Source, TokenizerFacts, created_now
from engine.model_folder import ModelError, ModelFolder

Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, how much there is

_WEIGHTS = "model.safetensors"
_TOKENIZER = "tokenizer.json"
_MOST_LAYERS = 1000


def import_bert(
    source: Path,
    destination: Path,
    *,
    name: str | None = None,
    progress: Progress = lambda stage, done, total: None,
    in_eight_bits: bool = False,
) -> ModelFolder:
    """Make the model folder ``destination`` from the directory ``source``; it appears whole or not at all.

    ``name`` is what the manifest calls the model, by default the folder's own. in_eight_bits: products are; otherwise
    all is float32. Raises ModelError, and does so before
    any work when the model is not one that the graph computes exactly.
    """
    config = read_json(source / "config.json")
    try:
        shape = _read_shape(config)
        shorter = _read_shorter(config, shape.hidden)
        pad_id = _integer(config, "pad_token_id", default=0, least=0, most=shape.vocab_size - 1)
    except ValueError as error:
        raise ModelError(f"{source / 'config.json'}: {error}") from error
    _check_modules(source)
    max_tokens = _read_max_tokens(source, shape.positions)
    tokenizer = _read_tokenizer(source / _TOKENIZER, shape.vocab_size)
    file = source / _WEIGHTS
    if not file.is_file():
        raise ModelError(f"{file}: is missing; only weights in one safetensors file are read, never pickles or shards")
    weights = _named_as_encoder(file, TensorFile(file), shape)
    progress("hash", 0, 1)
    origin = Source(file=file.name, sha256=model_folder.sha256(file))
    progress("hash", 1, 1)
    manifest = Manifest(
        name=name or destination.name,
        kind="embedding",
        architecture="bert",
        license=read_license(source / "README.md"),
        created=created_now(),
        source=origin,
        embedding=EmbeddingFacts(
            dimensions=shape.hidden,
            max_tokens=max_tokens,
            pad_id=pad_id,
            matryoshka_dimensions=shorter,
            weights="int8" if in_eight_bits else "float32",
        ),
        tokenizer=tokenizer,
    )
    progress("write", 0, 1)
    with model_folder.staged(destination) as directory:
        spelt = None
        if in_eight_bits:
            rows = calibration_rows(Tokenizer.from_file(str(source / _TOKENIZER)), max_tokens=max_tokens)
            spelt = partial(RoundedProducts, sizes=column_sizes(shape, weights, rows, directory))
        with WeightsFile(directory / model_folder.WEIGHTS) as weights_file:
            graph = bert_graph.build(shape, weights, weights_file, spelt)
        onnx.save_model(graph, directory / model_folder.GRAPH)
        (directory / _TOKENIZER).write_bytes((source / _TOKENIZER).read_bytes())
        model_folder.seal(directory, manifest)
    progress("write", 1, 1)
    return model_folder.read(destination)


def _read_shape(config: Mapping[str, Any]) -> bert_graph.BertShape:
    """The sizes in config.json; ValueError for whatever the graph does not compute."""
    if config.get("model_type") != "bert":
        raise ValueError(f"model_type is {config.get('model_type')!r}; only encoders of model_type 'bert' are imported")
    for key, value in {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}.items():
        if config.get(key, value) != value:
            raise ValueError(f"{key} is {config[key]!r}; only BERT encoders with {value!r} are imported")
    epsilon = config.get("layer_norm_eps", 1e-12)
    if type(epsilon) is not float or not 0 < epsilon < 1:
        raise ValueError(f"layer_norm_eps is {epsilon!r}, a small number is needed")
    shape = bert_graph.BertShape(
        vocab_size=_integer(config, "vocab_size"),
        positions=_integer(config, "max_position_embeddings", least=3),  # start, a token, end
        token_types=_integer(config, "type_vocab_size"),
        hidden=_integer(config, "hidden_size"),
        intermediate=_integer(config, "intermediate_size"),
        layers=_integer(config, "num_hidden_layers", most=_MOST_LAYERS),
        heads=_integer(config, "num_attention_heads"),
        epsilon=epsilon,
    )
    if shape.hidden % shape.heads:
        raise ValueError(f"hidden_size {shape.hidden} is not a multiple of num_attention_heads {shape.heads}")
    return shape


def _integer(
    config: Mapping[str, Any], key: str, *, default: int | None = None, least: int = 1, most: int = 1 << 31
) -> int:
    value = config.get(key, default)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{key} is {value!r}, a whole number from {least} to {most} is needed")
    return value


def _read_shorter(config: Mapping[str, Any], hidden: int) -> tuple[int, ...]:
    """The lengths at which the model was trained to have its vectors cut, as its authors tell of them."""
    lengths = config.get("matryoshka_dimensions") or []
    if not isinstance(lengths, list) or any(type(each) is not int or not 1 <= each <= hidden for each in lengths):
        raise ValueError(f"matryoshka_dimensions is {lengths!r}, whole numbers from 1 to {hidden} are needed")
    return tuple(sorted(set(lengths)))


def _check_modules(source: Path) -> None:
    """Refuse a sentence-transformers pipeline other than encoder, mean pooling, normalisation."""
    path = source / "modules.json"
    if not path.is_file():
        return
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in read_json(path, list)]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(f"{path}: only Transformer, Pooling and Normalize are supported, not {', '.join(kinds)}")
    pooling = read_json(source / "1_Pooling" / "config.json")
    modes = [key for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True]
    if modes != ["pooling_mode_mean_tokens"]:
        raise ModelError(f"{source / '1_Pooling' / 'config.json'}: only mean pooling is supported, not {modes}")


def _read_max_tokens(source: Path, positions: int) -> int:
    """How long a text the model was made for, special tokens included."""
    path = source / "sentence_bert_config.json"
    declared = read_json(path).get("max_seq_length") if path.is_file() else None
    return min(declared, positions) if type(declared) is int and declared > 2 else positions


def _read_tokenizer(path: Path, vocab_size: int) -> TokenizerFacts:
    """What the manifest says of tokenizer.json; ModelError when its ids do not fit the model."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
        TextAdapter(tokenizer, max_tokens=1)  # it says whether the tokenizer does what serving needs
    except Exception as error:  # the package raises bare Exception for a missing or a malformed file
        raise ModelError(f"{path}: cannot be read as a tokenizer ({error}); export it with the model") from error
    ids = tokenizer.get_vocab(with_added_tokens=True)
    if max(ids.values(), default=0) >= vocab_size:
        raise ModelError(f"{path}: has ids beyond the model's {vocab_size} words; it belongs to another model")
    special = {token.content: id for id, token in sorted(tokenizer.get_added_tokens_decoder().items()) if token.special}
    return TokenizerFacts(kind="tokenizers", file=_TOKENIZER, special=special)


def _named_as_encoder(path: Path, tensors: TensorFile, shape: bert_graph.BertShape) -> dict[str, NDArray[np.float32]]:
    """The tensors that the graph needs, under the names without the ``bert.`` that some files put before them."""
    plain = {re.sub(r"^bert\.", "", name): name for name in tensors}
    needed = shape.tensors()
    for name, expected in needed.items():
        if name not in plain:
            raise ModelError(f"{path}: has no floating-point tensor {name}; it is not the model of config.json")
        if (found := tensors.tensors[plain[name]].shape) != expected:
            raise ModelError(f"{path}: {name} has shape {found}, config.json says {expected}; fetch both files again")
    return {name: tensors[plain[name]] for name in needed}
