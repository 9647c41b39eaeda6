"""The vocabulary inside a GGUF file: byte-level BPE as tiktoken ranks, SentencePiece as a tokenizer.json.

Owns what `tokenizer.*` must say. GGUF stores byte-level BPE as GPT-2 did: each byte is spelt as a printable character,
merges as pairs of spelt tokens. Knows no weights and no graph.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from engine.importers.sentencepiece import sentencepiece_vocabulary
from engine.importers.vocabulary import (
    ENDS_OF_TURN,
    GPT_2,
    GPT_2_AND_DIGITS,
    ModelVocabulary,
    ranks_of,
    tiktoken_vocabulary,
)
from engine.manifest import TokenizerFacts
from engine.model_folder import ModelError

T = TypeVar("T")

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # GGUF's token types that text must never produce; the last is shown

# The splits of text before merging, one expression for each `tokenizer.ggml.pre` that is supported.
_LLAMA_BPE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {
    "smollm": GPT_2_AND_DIGITS,
    "gpt-2": GPT_2,
    "llama-bpe": _LLAMA_BPE,
    "qwen2": _LLAMA_BPE.replace(r"\p{N}{1,3}", r"\p{N}"),
    "tekken": _TEKKEN,
}
WHOLE = ("llama-bpe", "tekken")  # whose words, when they are tokens, are not merged


class _Tokens(NamedTuple):
    texts: list[str]
    special: dict[str, int]
    shown: list[str]
    unknown_id: int | None


def read_vocabulary(metadata: Mapping[str, Any]) -> ModelVocabulary:
    """Read `tokenizer.*` of a GGUF file's metadata. Raises ModelError for what would not come out the same."""
    texts = _values(metadata, "ggml.tokens", str)
    types = _values(metadata, "ggml.token_type", int) or [1] * len(texts)
    if len(types) != len(texts):
        raise ModelError(f"the tokenizer has {len(texts)} tokens and the types of {len(types)}; fetch the file again")
    kinds = list(zip(texts, types, strict=True))
    bos_id, eos_id, eot_id, eom_id, unknown_id = (
        _id(metadata, f"ggml.{name}_token_id", len(texts)) for name in ("bos", "eos", "eot", "eom", "unknown")
    )
    tokens = _Tokens(
        texts,
        special={text: id_ for id_, (text, kind) in enumerate(kinds) if kind in (UNKNOWN, CONTROL, USER_DEFINED)},
        shown=[text for text, kind in kinds if kind == USER_DEFINED],
        unknown_id=unknown_id,
    )
    model, pre = _value(metadata, "ggml.model", str), _value(metadata, "ggml.pre", str) or "default"
    if model == "llama":
        facts, content = _sentencepiece(metadata, tokens)
    elif model == "gpt2" and pre in PATTERNS:
        facts, content = _byte_pairs(metadata, tokens, pre)
    else:
        known = ", ".join(sorted(PATTERNS))
        raise ModelError(f"the tokenizer {model}/{pre} is not supported; supported: llama, gpt2 with one of {known}")
    eos_ids = {id_ for id_ in (eos_id, eot_id, eom_id) if id_ is not None}
    eos_ids |= {tokens.special[text] for text in ENDS_OF_TURN if text in tokens.special}
    adds_bos = _value(metadata, "ggml.add_bos_token", bool)
    return ModelVocabulary(
        facts=facts,
        content=content,
        count=len(texts),
        eos_ids=tuple(sorted(eos_ids)),
        bos_id=bos_id,
        add_bos=model == "llama" if adds_bos is None else adds_bos,
        chat_template=_value(metadata, "chat_template", str),
    )


def _byte_pairs(metadata: Mapping[str, Any], tokens: _Tokens, pre: str) -> tuple[TokenizerFacts, bytes]:
    ids = {text: id_ for id_, text in enumerate(tokens.texts) if text not in tokens.special}
    merges = (merge.partition(" ") for merge in _values(metadata, "ggml.merges", str))
    try:
        ranks = ranks_of(ids, ((left, right) for left, _, right in merges), whole=pre in WHOLE)
    except ValueError as error:
        raise ModelError(f"the tokenizer's {error}; not supported") from error
    return tiktoken_vocabulary(
        ranks, pattern=PATTERNS[pre], special=tokens.special, shown=tokens.shown, unknown_id=tokens.unknown_id
    )


def _sentencepiece(metadata: Mapping[str, Any], tokens: _Tokens) -> tuple[TokenizerFacts, bytes]:
    scores = _values(metadata, "ggml.scores", float)
    if len(scores) != len(tokens.texts) or tokens.unknown_id is None:
        raise ModelError("the tokenizer lacks the scores of its tokens or its unknown token; fetch the file again")
    prefix = _value(metadata, "ggml.add_space_prefix", bool)
    return sentencepiece_vocabulary(
        tokens.texts,
        scores,
        special=tokens.special,
        shown=tokens.shown,
        unknown=tokens.texts[tokens.unknown_id],
        prefix=prefix is None or prefix,
    )


def _value(metadata: Mapping[str, Any], key: str, kind: type[T]) -> T | None:
    """What the key says, None when it is not there. Raises ModelError for another type."""
    value = metadata.get(f"tokenizer.{key}")
    if value is None or type(value) is kind:
        return value
    raise ModelError(f"the key tokenizer.{key} should be of type {kind.__name__}; fetch the file again")


def _values(metadata: Mapping[str, Any], key: str, kind: type[T]) -> list[T]:
    """The same for an array, [] when it is not there."""
    values: list[Any] = _value(metadata, key, list) or []
    if all(type(value) is kind for value in values):
        return values
    raise ModelError(f"the key tokenizer.{key} should hold values of type {kind.__name__}; fetch the file again")


def _id(metadata: Mapping[str, Any], key: str, count: int) -> int | None:
    id_ = _value(metadata, key, int)
    if id_ is None or 0 <= id_ < count:
        return id_
    raise ModelError(f"the key tokenizer.{key} is {id_}, beyond the {count} tokens; fetch the file again")
