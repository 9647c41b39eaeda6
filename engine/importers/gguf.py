"""GGUF files of the llama, qwen2 and qwen3 architectures made into model folders, by numpy and onnx alone.

Everything is checked before any work: the architecture, the tensors' names, shapes and types, the vocabulary. Weights
are carried over exactly (see gguf_blocks), piece by piece, so memory stays bounded. Knows nothing of ONNX Runtime.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import onnx
from numpy.typing import NDArray

from engine import model_folder
from engine.importers import gguf_blocks, gguf_super_blocks
from engine.importers.decode_weights import Progress, StoredTensor, chat_facts, write_decoder
from engine.importers.family import Hyperparameters
from engine.importers.gguf_family import read_hyperparameters
from engine.importers.gguf_vocabulary import GgufVocabulary, read_vocabulary
from engine.importers.weights import WeightsFile
from engine.manifest import Manifest, Source, TokenizerFacts, created_now
from engine.model_folder import ModelError, ModelFolder

_Type = gguf.GGMLQuantizationType
_BLOCKS = {
    _Type.Q4_0: gguf_blocks.Q4_0,
    _Type.Q4_1: gguf_blocks.Q4_1,
    _Type.Q8_0: gguf_blocks.Q8_0,
    _Type.Q4_K: gguf_super_blocks.Q4_K,
    _Type.Q6_K: gguf_super_blocks.Q6_K,
}
_NUMBERS = (_Type.F16, _Type.BF16, _Type.F32)


def import_gguf(
    source: Path, destination: Path, *, name: str | None = None, progress: Progress = lambda stage, done, total: None
) -> ModelFolder:
    """Make the model folder `destination` from the GGUF file `source`; it appears whole or not at all.

    `name` is what the manifest calls the model, by default the folder's own. Raises ModelError, and does so before any
    work when the file is not one that can be imported exactly.
    """
    progress("read", 0, 1)
    try:
        file = _File(source)
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from error
    progress("read", 1, 1)
    with model_folder.staged(destination) as directory:
        progress("hash", 0, 1)
        origin = Source(file=source.name, sha256=model_folder.sha256(source))
        progress("hash", 1, 1)
        with WeightsFile(directory / model_folder.WEIGHTS) as weights:
            graph = write_decoder(file.model, file.tensors, weights, progress)
        onnx.save(graph, directory / model_folder.GRAPH)
        (directory / model_folder.RANKS).write_bytes(file.vocabulary.tiktoken_file())
        if file.vocabulary.chat_template is not None:
            template = directory / model_folder.CHAT_TEMPLATE
            template.write_text(file.vocabulary.chat_template, encoding="utf-8", newline="")
        progress("write", 0, 1)
        model_folder.seal(directory, _manifest(name or destination.name, file, origin))
    progress("write", 1, 1)
    return model_folder.read(destination)


class _BoundedReader(gguf.GGUFReader):
    """The package's reader reads nothing beyond the end as an empty array, and so an array's length for ever."""

    def _get(
        self, offset: int, dtype: Any, count: int = 1, override_order: Literal["I", "S", "<"] | None = None
    ) -> NDArray[Any]:
        if offset + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise ValueError(f"it ends before what begins at byte {offset}")
        return super()._get(offset, dtype, count, override_order)


class _File:
    """A GGUF file that has been found to hold what the importer needs."""

    def __init__(self, source: Path) -> None:
        try:
            reader = _BoundedReader(source)
            self.metadata: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
        except OSError as error:
            raise ModelError(f"{error.strerror}; give the path of a GGUF file") from error
        except (ValueError, KeyError, IndexError, OverflowError, RecursionError) as error:
            raise ModelError(f"is no GGUF file or is cut short ({error}); fetch it again") from error
        self.model: Hyperparameters = read_hyperparameters(self.metadata)
        self.vocabulary: GgufVocabulary = read_vocabulary(self.metadata)
        found = {tensor.name: tensor for tensor in reader.tensors}
        self._check(found)
        self.tensors = {name: _stored(tensor) for name, tensor in found.items()}

    def _check(self, found: Mapping[str, gguf.ReaderTensor]) -> None:
        needed, optional = self.model.tensors(), self.model.optional_tensors()
        if missing := needed.keys() - found.keys():
            raise ModelError(f"lacks {len(missing)} tensors, {min(missing)} among them; fetch it again")
        for name, tensor in found.items():
            expected = needed.get(name) or optional.get(name)
            if expected is None:
                raise ModelError(
                    f"holds the tensor {name}, which this importer does not know; the model is not supported"
                )
            if (shape := _shape(tensor)) != expected:
                raise ModelError(f"the tensor {name} has shape {shape} and should have {expected}; fetch it again")
            if tensor.tensor_type not in (*_NUMBERS, *(_BLOCKS if len(shape) == 2 else ())):
                supported = ", ".join(kind.name for kind in (*_BLOCKS, *_NUMBERS))
                kind = _Type(tensor.tensor_type).name
                raise ModelError(f"the tensor {name} is of type {kind}; supported: {supported}")


def _shape(tensor: gguf.ReaderTensor) -> tuple[int, ...]:
    return tuple(int(size) for size in reversed(tensor.shape))


def _stored(tensor: gguf.ReaderTensor) -> StoredTensor:
    data = tensor.data
    if tensor.tensor_type == _Type.BF16:  # which the package gives as bytes
        data = data.view(np.uint16)
    return StoredTensor(_shape(tensor), data, _BLOCKS.get(tensor.tensor_type))


def _manifest(name: str, file: _File, origin: Source) -> Manifest:
    model, vocabulary = file.model, file.vocabulary
    license_name = file.metadata.get("general.license")
    return Manifest(
        name=name,
        kind="chat",
        architecture=model.family,
        license=license_name if isinstance(license_name, str) else None,
        created=created_now(),
        source=origin,
        chat=chat_facts(model, eos_ids=vocabulary.eos_ids, bos_id=vocabulary.bos_id, add_bos=vocabulary.add_bos),
        tokenizer=TokenizerFacts(
            kind="tiktoken",
            file=model_folder.RANKS,
            pattern=vocabulary.pattern,
            special=dict(vocabulary.special),
            unknown_id=vocabulary.unknown_id,
        ),
    )
