"""The manifest of a model folder, `model.yaml`: what the model is, and what the engine must know before it loads it.

Owns the tables and their bounds, and reading them from bytes that nobody vouches for. Knows no other file.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import orjson
import yaml
from pydantic import Field, ValidationError, model_validator

from engine.providers import ProviderName
from engine.tables import FileName, Size, Table
from engine.tensor_facts import AdapterFacts as AdapterFacts
from engine.tensor_facts import BatchingFacts as BatchingFacts
from engine.tensor_facts import ClassifyFacts as ClassifyFacts
from engine.tensor_facts import ImageFacts as ImageFacts
from engine.tensor_facts import TensorFacts as TensorFacts
from engine.tensor_facts import TensorModelFacts as TensorModelFacts
from engine.tensor_facts import TextFacts as TextFacts

_LIMIT_BYTES = 4 << 20


class ModelError(ImportError):
    """A model that cannot be imported or read. The message says what is wrong, with which file, and what to do."""


class FileRecord(Table):
    """What one file of the folder must be."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Source(Table):
    """Where the weights came from."""

    file: str
    sha256: str


class ChatFacts(Table):
    """What the engine must know of a decoder-only language model before it loads the graph."""

    layers: Size
    hidden: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    vocab_size: Size
    context: Size  # tokens
    max_chunk: Size  # tokens that one sequence may add in one run
    top_k: Size  # how many of the best logits the graph hands out, descending
    eos_ids: tuple[Annotated[int, Field(ge=0)], ...]  # ids that end an answer
    bos_id: int | None = None
    add_bos: bool = False  # whether a prompt must begin with bos_id when the template has not put it there
    kv_cache: Literal["float32", "int8"] = "float32"  # the numbers of which the memory of keys and values is made


class EmbeddingFacts(Table):
    """What the engine must know of an embedding model before it loads the graph."""

    dimensions: Size
    max_tokens: Size  # special tokens included
    pooling: Literal["mean"] = "mean"
    normalized: bool = True
    weights: Literal["float32", "int8"] = "float32"  # int8: and what they are multiplied by
    pad_id: int = 0
    matryoshka_dimensions: tuple[Size, ...] = ()  # beginnings of a vector that are vectors too, when of length 1 again

    @model_validator(mode="after")
    def _is_shorter(self) -> Self:
        if any(length > self.dimensions for length in self.matryoshka_dimensions):
            raise ValueError(f"matryoshka_dimensions: none may be above dimensions, {self.dimensions}")
        return self


class TokenizerFacts(Table):
    """How text becomes ids: `tiktoken` reads `file` as ranks, `tokenizers` as a tokenizer.json."""

    kind: Literal["tiktoken", "tokenizers"]
    file: FileName
    pattern: str | None = None  # tiktoken: the regular expression that splits text before merging
    special: dict[str, int] = Field(default_factory=dict)  # text of each control token and its id
    shown: tuple[str, ...] = ()  # control tokens that are text in an answer, such as <think>
    unknown_id: int | None = None  # stands for bytes that the vocabulary lacks
    nfc: bool = False  # tiktoken: text is composed (Unicode's NFC) before it is split


class Manifest(Table):
    """The contents of `model.yaml`."""

    format: Literal[1] = 1
    name: str = Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")
    kind: Literal["chat", "embedding", "tensor"]
    version: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)] = "1"
    architecture: str
    license: str | None = None
    created: str
    source: Source
    changes: tuple[str, ...] = ()  # what the importer changed about the model, or could not
    chat: ChatFacts | None = None
    embedding: EmbeddingFacts | None = None
    tensors: TensorModelFacts | None = None
    adapter: AdapterFacts | None = None
    classify: ClassifyFacts | None = None
    batching: BatchingFacts = BatchingFacts()
    instances: Annotated[int, Field(ge=1, le=64)] = 1  # sessions of a tensor model, unless configured
    provider: ProviderName | None = None  # unless the configuration names one; None: cpu
    tokenizer: TokenizerFacts | None = None
    files: dict[FileName, FileRecord] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        needed = {"tensor": ("tensors",)}.get(self.kind, (self.kind, "tokenizer"))
        for table in needed:
            if getattr(self, table) is None:
                raise ValueError(f"a model of kind {self.kind} needs the table {table}")
        if self.tensors is None and (self.adapter or self.classify):
            raise ValueError("adapter and classify belong to models of kind tensor")
        if self.tensors is not None:
            self._names_tensors(self.tensors)
        datetime.fromisoformat(self.created)
        return self

    def num_instances(self, wanted: int | None = None) -> int:
        """Sessions that each run a share of a batch, with weights of their own. wanted: what the configuration says."""
        if self.tensors is None or not self.tensors.batched:
            return 1
        return wanted or self.instances

    def _names_tensors(self, tensors: TensorModelFacts) -> None:
        """Whatever speaks of a tensor must speak of one that is there."""
        image, text = (self.adapter.image, self.adapter.text) if self.adapter else (None, None)
        inputs = [image.input] if image else []
        inputs += [name for name in (text.ids, text.mask, text.types) if name is not None] if text else []
        if unknown := next((name for name in inputs if tensors.input(name) is None), None):
            raise ValueError(f"adapter: there is no input {unknown!r}")
        if len(set(inputs)) != len(inputs):
            raise ValueError("adapter: two of its parts fill the same input")
        if inputs and not tensors.batched:
            raise ValueError("adapter: needs a model that is batched")
        if text and self.tokenizer is None:
            raise ValueError("adapter: text needs the table tokenizer")
        if self.classify and tensors.output(self.classify.output) is None:
            raise ValueError(f"classify: there is no output {self.classify.output!r}")


def parse(text: bytes, source: Path) -> Manifest:
    """The manifest in the bytes of ``source``. Raises ModelError for whatever they hold instead."""
    if len(text) > _LIMIT_BYTES:
        raise ModelError(f"{source}: is larger than {_LIMIT_BYTES >> 20} MiB; no manifest is")
    try:
        document: Any = _PlainLoader(text).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date or a number that is none
        raise ModelError(f"{source}: is not YAML ({error}); import the model again") from error
    if not isinstance(document, dict) or document.get("format") != 1:
        raise ModelError(f"{source}: is not a manifest of format 1, the one this version reads; import the model again")
    try:
        return Manifest.model_validate_json(orjson.dumps(document))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"{part}: " for part in first["loc"])
        what = f"{where}{first['msg']}"
        raise ModelError(f"{source}: is damaged ({what}); correct it or import the model again") from error
    except TypeError as error:
        raise ModelError(f"{source}: is damaged ({error}); import the model again") from error


class _PlainLoader(yaml.SafeLoader):
    """Values as they stand: a few aliases of aliases would fill the memory, and no manifest has any."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("a manifest has no aliases")
        return super().compose_node(parent, index)


def created_now() -> str:
    """The present instant as the manifest's `created` spells it: RFC 3339 in UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
