"""A chat model that an importer has read and checked, written as a model folder. Knows no format that it came from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from engine import model_folder
from engine.importers.calibration_text import CALIBRATION_TEXT
from engine.importers.decode_weights import DecoderWriter, KvCache, Precision, Progress, StoredTensor, chat_facts
from engine.importers.family import Hyperparameters
from engine.importers.rounded_weights import RoundedWriter
from engine.importers.vocabulary import ModelVocabulary
from engine.importers.weights import WeightsFile
from engine.llm.vocabulary import read_vocabulary
from engine.manifest import Manifest, Source, created_now
from engine.model_folder import ModelError, ModelFolder


@dataclass(frozen=True, slots=True)
class ChatSource:
    """A model as its files say it is, before anything is written."""

    model: Hyperparameters
    tensors: Mapping[str, StoredTensor]
    vocabulary: ModelVocabulary
    license: str | None


def write_chat_folder(
    source: ChatSource,
    origin: Callable[[], Source],
    destination: Path,
    *,
    name: str,
    progress: Progress,
    weights: Precision = "exact",
    kv_cache: KvCache = "float32",
) -> ModelFolder:
    """Make the model folder `destination`; it appears whole or not at all. `origin` reads and hashes the files."""
    if kv_cache == "int8" and (weights != "int8" or source.model.head_dim % 4):
        raise ModelError("keys and values in eight bits want weights in eight bits, and heads of a multiple of four")
    with model_folder.staged(destination) as directory:
        progress("hash", 0, 1)
        hashed = origin()
        progress("hash", 1, 1)
        vocabulary = source.vocabulary
        ids_file = directory / vocabulary.facts.file
        ids_file.write_bytes(vocabulary.content)
        with WeightsFile(directory / model_folder.WEIGHTS) as file:
            if weights == "int8":
                tokens = _calibration(ids_file, source)
                graph = RoundedWriter(source.model, source.tensors, file, progress, tokens, kv_cache=kv_cache).graph()
            else:
                in_blocks = weights == "exact"
                graph = DecoderWriter(source.model, source.tensors, file, progress, in_blocks=in_blocks).graph()
        onnx.save(graph, directory / model_folder.GRAPH)
        if vocabulary.chat_template is not None:
            template = directory / model_folder.CHAT_TEMPLATE
            template.write_text(vocabulary.chat_template, encoding="utf-8", newline="")
        progress("write", 0, 1)
        manifest = Manifest(
            name=name,
            kind="chat",
            architecture=source.model.family,
            license=source.license,
            created=created_now(),
            source=hashed,
            chat=chat_facts(
                source.model,
                eos_ids=vocabulary.eos_ids,
                bos_id=vocabulary.bos_id,
                add_bos=vocabulary.add_bos,
                kv_cache=kv_cache,
            ),
            tokenizer=vocabulary.facts,
        )
        model_folder.seal(directory, manifest)
    progress("write", 1, 1)
    return model_folder.read(destination)


def _calibration(ids_file: Path, source: ChatSource) -> Sequence[int]:
    """What the model is to read while its weights are rounded. Raises ModelError."""
    try:
        vocabulary = read_vocabulary(ids_file, source.vocabulary.facts, source.model.vocab_size)
        return vocabulary.encode_text(CALIBRATION_TEXT, max_tokens=len(CALIBRATION_TEXT.encode()))
    except ValueError as error:
        raise ModelError(f"its vocabulary cannot be used ({error}); import it with --weights exact") from error


def check_shapes(model: Hyperparameters, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ModelError unless tensors of these shapes are what the model needs, no more and no less."""
    needed, optional = model.tensors(), model.optional_tensors()
    if missing := needed.keys() - shapes.keys():
        raise ModelError(f"lacks {len(missing)} tensors, {min(missing)} among them; fetch it again")
    for name, shape in shapes.items():
        expected = needed.get(name) or optional.get(name)
        if expected is None:
            raise ModelError(f"holds the tensor {name}, which this importer does not know; the model is not supported")
        if shape != expected:
            raise ModelError(f"the tensor {name} has shape {shape} and should have {expected}; fetch it again")
