"""The vocabulary inside a GGUF file as tiktoken ranks. Knows no weights and no graph.

GGUF stores byte-level BPE as GPT-2 did: each byte is spelt as a printable character, merges as pairs of spelt tokens.
tiktoken merges the pair whose product has the lowest rank. Both agree when ids grow in the order of the merges, so that
is checked, and then the rank of a token is its id.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.model_folder import ModelError

T = TypeVar("T")

CONTROL, USER_DEFINED = 3, 4  # GGUF's token types that text must never produce

# Control tokens that end a turn or a text; many files name only one of those that their model was trained to say.
ENDS_OF_TURN = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>")

# The splits of text before merging, one expression for each `tokenizer.ggml.pre` that is supported.
# smollm first cuts out every digit and then splits what lies between, so white space before a digit belongs together.
_SMOLLM = r"\p{N}|'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"  # fmt: skip
_GPT_2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA_BPE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {"smollm": _SMOLLM, "gpt-2": _GPT_2, "llama-bpe": _LLAMA_BPE}


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """What the tokenizer's part of a GGUF file says."""

    ranks: Mapping[bytes, int]  # bytes of each ordinary token to its id
    special: Mapping[str, int]  # text of each control token to its id
    pattern: str
    count: int
    eos_ids: tuple[int, ...]
    bos_id: int | None
    add_bos: bool
    unknown_id: int | None
    chat_template: str | None

    def tiktoken_file(self) -> bytes:
        """The ranks as tiktoken's own file format: base64 of the token, a space, its rank, one a line."""
        return b"".join(b"%s %d\n" % (b64encode(token), rank) for token, rank in self.ranks.items())


def read_vocabulary(metadata: Mapping[str, Any]) -> GgufVocabulary:
    """Read `tokenizer.*` of a GGUF file's metadata. Raises ModelError for what tiktoken cannot express."""
    model, pre = _value(metadata, "ggml.model", str), _value(metadata, "ggml.pre", str) or "default"
    if model != "gpt2" or pre not in PATTERNS:
        known = ", ".join(sorted(PATTERNS))
        raise ModelError(f"the tokenizer {model}/{pre} is not supported; supported: gpt2 with one of {known}")
    tokens = _values(metadata, "ggml.tokens", str)
    types = _values(metadata, "ggml.token_type", int) or [1] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(f"the tokenizer has {len(tokens)} tokens and the types of {len(types)}; fetch the file again")
    special = {
        text: id_ for id_, (text, kind) in enumerate(zip(tokens, types, strict=True)) if kind in (CONTROL, USER_DEFINED)
    }
    bos_id, eos_id, eot_id, eom_id, unknown_id = (
        _id(metadata, f"ggml.{name}_token_id", len(tokens)) for name in ("bos", "eos", "eot", "eom", "unknown")
    )
    eos_ids = {id_ for id_ in (eos_id, eot_id, eom_id) if id_ is not None}
    eos_ids |= {special[text] for text in ENDS_OF_TURN if text in special}
    return GgufVocabulary(
        ranks=_ranks(tokens, _values(metadata, "ggml.merges", str), set(special.values())),
        special=special,
        pattern=PATTERNS[pre],
        count=len(tokens),
        eos_ids=tuple(sorted(eos_ids)),
        bos_id=bos_id,
        add_bos=bool(_value(metadata, "ggml.add_bos_token", bool)),
        unknown_id=unknown_id,
        chat_template=_value(metadata, "chat_template", str),
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


def _ranks(tokens: Sequence[str], merges: Sequence[str], special_ids: set[int]) -> dict[bytes, int]:
    """Ranks of the single bytes and of what merges make; other ids can be sampled but never encoded."""
    ids = {text: id_ for id_, text in enumerate(tokens) if id_ not in special_ids}
    spelt = _byte_of_character()
    found = {id_ for text, id_ in ids.items() if len(text) == 1 and text in spelt}
    previous = -1
    for number, merge in enumerate(merges):
        id_ = ids.get(merge.replace(" ", "", 1))
        if id_ is None or id_ < previous or not spelt.keys() >= set(tokens[id_]):
            raise ModelError(f"the tokenizer's merge {number} ({merge!r}) breaks the order of the ids; not supported")
        previous = id_
        found.add(id_)
    return {bytes(spelt[character] for character in tokens[id_]): id_ for id_ in sorted(found)}


def _byte_of_character() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 stands for itself, the other 68 are moved to U+0100 and above."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(moved)}
