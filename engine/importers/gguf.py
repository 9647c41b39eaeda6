"""GGUF files of the llama, qwen2 and qwen3 architectures made into model folders, by numpy and onnx alone.

Everything is checked before any work: the architecture, the tensors' names, shapes and types, the vocabulary. Weights
are carried over exactly (see gguf_blocks), piece by piece, so memory stays bounded. Knows nothing of ONNX Runtime.
"""

from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from numpy.typing import NDArray

from engine import model_folder
from engine.importers import gguf_blocks, gguf_super_blocks
from engine.importers.chat_folder import ChatSource, check_shapes, write_chat_folder
from engine.importers.decode_weights import KvCache, Precision, Progress, StoredTensor
from engine.importers.gguf_family import read_hyperparameters
from engine.importers.gguf_vocabulary import read_vocabulary
from engine.manifest import Source
from engine.model_folder import ModelError, ModelFolder

_Type = gguf.GGMLQuantizationType
_BLOCKS = {
    _Type.Q4_0: gguf_blocks.Q4_0,
    _Type.Q4_1: gguf_blocks.Q4_1,
    _Type.Q5_0: gguf_blocks.Q5_0,
    _Type.Q5_1: gguf_blocks.Q5_1,
    _Type.Q8_0: gguf_blocks.Q8_0,
    _Type.Q4_K: gguf_super_blocks.Q4_K,
    _Type.Q6_K: gguf_super_blocks.Q6_K,
}
_NUMBERS = (_Type.F16, _Type.BF16, _Type.F32)


def import_gguf(
    source: Path,
    destination: Path,
    *,
    name: str | None = None,
    progress: Progress = lambda stage, done, total: None,
    weights: Precision = "exact",
    kv_cache: KvCache = "float32",
) -> ModelFolder:
    """Make the model folder `destination` from the GGUF file `source`; it appears whole or not at all.

    `name` is what the manifest calls the model, by default the folder's own. Raises ModelError, and does so before any
    work when the file is not one that can be imported exactly.
    """
    progress("read", 0, 1)
    try:
        model = _read(source)
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from error
    progress("read", 1, 1)

    def origin() -> Source:
        return Source(file=source.name, sha256=model_folder.sha256(source))

    return write_chat_folder(
        model, origin, destination, name=name or destination.name, progress=progress, weights=weights, kv_cache=kv_cache
    )


class _BoundedReader(gguf.GGUFReader):
    """The package's reader reads nothing beyond the end as an empty array, and so an array's length for ever."""

    def _get(
        self, offset: int, dtype: Any, count: int = 1, override_order: Literal["I", "S", "<"] | None = None
    ) -> NDArray[Any]:
        if offset + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise ValueError(f"it ends before what begins at byte {offset}")
        return super()._get(offset, dtype, count, override_order)


def _read(source: Path) -> ChatSource:
    """What the file holds, once it has been found to be what the importer needs."""
    try:
        reader = _BoundedReader(source)
        metadata: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
    except OSError as error:
        raise ModelError(f"{error.strerror}; give the path of a GGUF file") from error
    except (ValueError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise ModelError(f"is no GGUF file or is cut short ({error}); fetch it again") from error
    model, vocabulary = read_hyperparameters(metadata), read_vocabulary(metadata)
    tensors = {tensor.name: _stored(tensor) for tensor in reader.tensors}
    check_shapes(model, {name: tensor.shape for name, tensor in tensors.items()})
    license_name = metadata.get("general.license")
    return ChatSource(model, tensors, vocabulary, license_name if isinstance(license_name, str) else None)


def _stored(tensor: gguf.ReaderTensor) -> StoredTensor:
    shape = tuple(int(size) for size in reversed(tensor.shape))
    kind = tensor.tensor_type
    if kind not in (*_NUMBERS, *(_BLOCKS if len(shape) == 2 else ())):
        supported = ", ".join(each.name for each in (*_BLOCKS, *_NUMBERS))
        raise ModelError(f"the tensor {tensor.name} is of type {_Type(kind).name}; supported: {supported}")
    data = tensor.data.view(np.uint16) if kind == _Type.BF16 else tensor.data  # the package gives bytes
    return StoredTensor(shape, data, _BLOCKS.get(kind))
