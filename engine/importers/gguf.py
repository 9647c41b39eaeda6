"""GGUF files of the llama architecture made into model folders, by numpy and onnx alone.

Everything is checked before any work: the architecture, the tensors' names, shapes and types, the vocabulary. Weights
are carried over exactly (see gguf_blocks), piece by piece, so memory stays bounded. Knows nothing of ONNX Runtime.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from engine import model_folder
from engine.importers import gguf_blocks as blocks
from engine.importers.decode_graph import Layer, Plain, Quantised, Shape, Weight, Weights, build_graph
from engine.importers.gguf_llama import Hyperparameters, read_hyperparameters, rotary_tables
from engine.importers.gguf_vocabulary import GgufVocabulary, read_vocabulary
from engine.importers.weights import WeightsFile
from engine.manifest import ChatFacts, Manifest, Source, TokenizerFacts, created_now
from engine.model_folder import ModelError, ModelFolder

Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, how much there is

MAX_CHUNK_TOKENS = 512  # new tokens of one sequence in one run; the key/value memory has as much to spare
TOP_K = 64
PIECE_ROWS = 4096  # rows of a weight that are converted at a time

_QUANTISED = {
    gguf.GGMLQuantizationType.Q4_0: blocks.Q4_0,
    gguf.GGMLQuantizationType.Q4_1: blocks.Q4_1,
    gguf.GGMLQuantizationType.Q8_0: blocks.Q8_0,
}
_PLAIN = (gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.F32)


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
            graph = _Importer(file, weights, progress).graph()
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
        self.tensors: dict[str, gguf.ReaderTensor] = {tensor.name: tensor for tensor in reader.tensors}
        self._check_tensors()

    def _check_tensors(self) -> None:
        needed, optional = self.model.tensors(), self.model.optional_tensors()
        if missing := needed.keys() - self.tensors.keys():
            raise ModelError(f"lacks {len(missing)} tensors, {min(missing)} among them; fetch it again")
        for name, tensor in self.tensors.items():
            expected = needed.get(name) or optional.get(name)
            if expected is None:
                raise ModelError(
                    f"holds the tensor {name}, which this importer does not know; the model is not supported"
                )
            shape = tuple(int(size) for size in reversed(tensor.shape))
            if shape != expected:
                raise ModelError(f"the tensor {name} has shape {shape} and should have {expected}; fetch it again")
            if tensor.tensor_type not in (*_PLAIN, *(_QUANTISED if len(shape) == 2 else ())):
                kind = gguf.GGMLQuantizationType(tensor.tensor_type).name
                raise ModelError(f"the tensor {name} is of type {kind}; supported: Q4_0, Q4_1, Q8_0, F16, F32")


class _Importer:
    """Carries the tensors of one file into the weights file and the graph."""

    def __init__(self, file: _File, weights: WeightsFile, progress: Progress) -> None:
        self._file = file
        self._weights = weights
        self._progress = progress
        self._done_bytes = 0
        self._total_bytes = sum(int(tensor.n_bytes) for tensor in file.tensors.values())

    def graph(self) -> onnx.ModelProto:
        model = self._file.model
        shape = Shape(
            layers=model.layers,
            hidden=model.hidden,
            heads=model.heads,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            feed_forward=model.feed_forward,
            vocab_size=model.vocab_size,
            norm_epsilon=model.norm_epsilon,
            top_k=min(TOP_K, model.vocab_size),
        )
        factors = self._file.tensors.get("rope_freqs.weight")
        tables = rotary_tables(
            model, model.context + MAX_CHUNK_TOKENS, None if factors is None else factors.data.astype(np.float32)
        )
        cosines, sines = (
            self._weights.append(name, table.shape, [table])
            for name, table in zip(("cosines", "sines"), tables, strict=True)
        )
        head = self._weight("output.weight") if "output.weight" in self._file.tensors else None
        weights = Weights(
            embedding=self._weight("token_embd.weight"),
            layers=[self._layer(number) for number in range(model.layers)],
            output_norm=self._vector("output_norm.weight"),
            head=head,
        )
        return build_graph(shape, weights, cosines, sines)

    def _layer(self, number: int) -> Layer:
        block = f"blk.{number}"
        return Layer(
            attention_norm=self._vector(f"{block}.attn_norm.weight"),
            query_key_value=self._group(*(f"{block}.attn_{part}.weight" for part in "qkv")),
            attention_output=self._weight(f"{block}.attn_output.weight"),
            feed_forward_norm=self._vector(f"{block}.ffn_norm.weight"),
            gate_up=self._group(*(f"{block}.ffn_{part}.weight" for part in ("gate", "up"))),
            down=self._weight(f"{block}.ffn_down.weight"),
        )

    def _group(self, *names: str) -> Sequence[Weight]:
        """Projections of one input: a single weight when all are of one type, else one weight each."""
        if len({self._file.tensors[name].tensor_type for name in names}) == 1:
            return [self._weight(*names)]
        return [self._weight(name) for name in names]

    def _weight(self, *names: str) -> Weight:
        """The weight made of these tensors, one below the other."""
        tensors = [self._file.tensors[name] for name in names]
        rows = sum(int(tensor.shape[1]) for tensor in tensors)
        columns = int(tensors[0].shape[0])
        form = _QUANTISED.get(tensors[0].tensor_type)
        weight: Weight
        if form is None:
            pieces = (piece.astype(np.float32) for piece in _pieces(tensors))
            weight = Plain(rows, columns, self._weights.append(names[0], (rows, columns), pieces))
        else:
            per_block = (rows, columns // blocks.BLOCK)

            def part(label: str, width: int, convert: Callable[..., NDArray[Any]]) -> TensorProto:
                converted = (convert(piece, form) for piece in _pieces(tensors))
                shape = (*per_block, width) if width else per_block
                return self._weights.append(f"{names[0]}.{label}", shape, converted)

            weight = Quantised(
                rows,
                columns,
                form.bits,
                integers=part("integers", 4 * form.bits, blocks.integers),
                scales=part("scales", 0, blocks.scales),
                centres=part("centres", 0, blocks.centres) if form.has_minimum else None,
            )
        self._advance(tensors)
        return weight

    def _vector(self, name: str) -> TensorProto:
        tensor = self._file.tensors[name]
        self._advance([tensor])
        return self._weights.append(name, tensor.data.shape, [tensor.data.astype(np.float32)])

    def _advance(self, tensors: Sequence[gguf.ReaderTensor]) -> None:
        self._done_bytes += sum(int(tensor.n_bytes) for tensor in tensors)
        self._progress("weights", self._done_bytes, self._total_bytes)


def _pieces(tensors: Sequence[gguf.ReaderTensor]) -> Iterator[NDArray[Any]]:
    for tensor in tensors:
        for start in range(0, len(tensor.data), PIECE_ROWS):
            yield tensor.data[start : start + PIECE_ROWS]


def _manifest(name: str, file: _File, origin: Source) -> Manifest:
    model, vocabulary = file.model, file.vocabulary
    license_name = file.metadata.get("general.license")
    return Manifest(
        name=name,
        kind="chat",
        architecture="llama",
        license=license_name if isinstance(license_name, str) else None,
        created=created_now(),
        source=origin,
        chat=ChatFacts(
            layers=model.layers,
            hidden=model.hidden,
            heads=model.heads,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            vocab_size=model.vocab_size,
            context=model.context,
            max_chunk=MAX_CHUNK_TOKENS,
            top_k=min(TOP_K, model.vocab_size),
            eos_ids=vocabulary.eos_ids,
            bos_id=vocabulary.bos_id,
            add_bos=vocabulary.add_bos,
        ),
        tokenizer=TokenizerFacts(
            kind="tiktoken",
            file=model_folder.RANKS,
            pattern=vocabulary.pattern,
            special=dict(vocabulary.special),
            unknown_id=vocabulary.unknown_id,
        ),
    )
