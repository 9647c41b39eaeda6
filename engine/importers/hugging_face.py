"""Hugging Face folders made into model folders: which importer takes one, and decoders themselves.

    config.json, tokenizer.json                                            needed
    model.safetensors, or model.safetensors.index.json and its shards      needed
    tokenizer_config.json, chat_template.jinja, generation_config.json     read where present
    README.md                                                              its header may name the weights' license

Everything is checked before any work. Weights become float32, whatever floating-point type they are stored in, or
eight bits where that is asked for.
"""

import hashlib
import re
from pathlib import Path

from engine import model_folder
from engine.importers.bert import import_bert
from engine.importers.chat_folder import ChatSource, check_shapes, write_chat_folder
from engine.importers.decode_weights import KvCache, Precision, Progress, StoredTensor
from engine.importers.family import Hyperparameters
from engine.importers.hugging_face_config import read_hyperparameters
from engine.importers.hugging_face_files import read_json, read_license
from engine.importers.hugging_face_vocabulary import read_vocabulary
from engine.importers.safetensors import TensorFile
from engine.importers.sentencepiece import TOKENIZER
from engine.importers.vocabulary import ModelVocabulary
from engine.manifest import Source
from engine.model_folder import ModelError, ModelFolder

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def import_hugging_face(
    source: Path,
    destination: Path,
    *,
    name: str | None = None,
    progress: Progress = lambda stage, done, total: None,
    weights: Precision = "exact",
    kv_cache: KvCache = "float32",
) -> ModelFolder:
    """Make the model folder `destination` from the directory `source`; it appears whole or not at all.

    `name` is what the manifest calls the model, by default the folder's own. Raises ModelError, and does so before any
    work when the model is not one that the graphs compute exactly.
    """
    config = read_json(source / "config.json")
    if config.get("model_type") == "bert":
        if kv_cache == "int8":
            raise ModelError(f"{source}: a text encoder keeps no keys and values; import it without --kv-cache")
        return import_bert(source, destination, name=name, progress=progress, in_eight_bits=weights == "int8")
    try:
        model = read_hyperparameters(config)
    except ValueError as error:
        raise ModelError(f"{source / 'config.json'}: {error}") from error
    progress("read", 0, 1)
    vocabulary = _read_vocabulary(source, config, model)
    files = _weights_files(source)
    tensors = _read_tensors(source, files, model, tied=bool(config.get("tie_word_embeddings")))
    progress("read", 1, 1)
    checked = ChatSource(model, tensors, vocabulary, read_license(source / "README.md"))
    return write_chat_folder(
        checked,
        lambda: _origin(files),
        destination,
        name=name or destination.name,
        progress=progress,
        weights=weights,
        kv_cache=kv_cache,
    )


def _read_vocabulary(source: Path, config: dict[str, object], model: Hyperparameters) -> ModelVocabulary:
    tables = [
        read_json(source / file) if (source / file).is_file() else {}
        for file in ("tokenizer_config.json", "generation_config.json")
    ]
    template = source / "chat_template.jinja"
    try:
        if template.is_file():
            tables[0]["chat_template"] = template.read_text(encoding="utf-8")
        content = (source / TOKENIZER).read_bytes()
        vocabulary = read_vocabulary(content, config, *tables)
    except OSError as error:
        raise ModelError(f"{error.filename}: {error.strerror}; the directory must hold the whole model") from error
    except ValueError as error:
        raise ModelError(f"{source / TOKENIZER}: {error}; export it with the model") from error
    if vocabulary.count > model.vocab_size:
        raise ModelError(
            f"{source / TOKENIZER}: has ids beyond the model's {model.vocab_size}; it belongs to another model"
        )
    return vocabulary


def _weights_files(source: Path) -> list[Path]:
    """The file or the shards that hold the weights."""
    if not (source / _INDEX).is_file():
        if not (source / _WEIGHTS).is_file():
            raise ModelError(f"{source / _WEIGHTS}: is missing; weights are read from safetensors alone, never pickles")
        return [source / _WEIGHTS]
    shards = read_json(source / _INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelError(f"{source / _INDEX}: has no weight_map; fetch the file again")
    names = sorted({str(shard) for shard in shards.values()})
    if bad := [shard for shard in names if not re.fullmatch(r"[\w.-]+\.safetensors", shard)]:
        raise ModelError(f"{source / _INDEX}: names the shard {bad[0]!r}, which is no file beside it; fetch it again")
    return [source / shard for shard in names]


def _read_tensors(source: Path, files: list[Path], model: Hyperparameters, *, tied: bool) -> dict[str, StoredTensor]:
    """The tensors under GGUF's names. An embedding that serves as the head may be stored as one too."""
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        shard = TensorFile(file)
        for name, tensor in shard.tensors.items():
            renamed = _renamed(name)
            if renamed is None or (tied and renamed == "output.weight"):
                continue
            if name not in shard:
                raise ModelError(f"{file}: the tensor {name} is of type {tensor.dtype}; supported: F32, F16, BF16")
            tensors[renamed] = StoredTensor(tensor.shape, shard.stored(name))
    try:
        check_shapes(model, {name: tensor.shape for name, tensor in tensors.items()})
        if not tied and "output.weight" not in tensors:
            raise ModelError("lacks lm_head.weight, and config.json does not tie it to the embedding; fetch it again")
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from error
    return tensors


def _renamed(name: str) -> str | None:
    """GGUF's name of a tensor, the name itself where it has none, None for what is computed from config.json."""
    if name.endswith("rotary_emb.inv_freq"):
        return None
    stem, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    if layer is not None and layer[2] in _IN_LAYER:
        return f"blk.{layer[1]}.{_IN_LAYER[layer[2]]}.{kind}"
    return f"{_TOP[stem]}.{kind}" if stem in _TOP else name


def _origin(files: list[Path]) -> Source:
    """The file's hash; of shards that of their hashes, in the order of their names."""
    hashes = [model_folder.sha256(file) for file in files]
    if len(files) == 1:
        return Source(file=files[0].name, sha256=hashes[0])
    return Source(file=_INDEX, sha256=hashlib.sha256("".join(hashes).encode()).hexdigest())
