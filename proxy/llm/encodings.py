"""How text becomes tokens, for counting: OpenAI's encodings by tiktoken, with ranks of this box, and a model's own.

One encoder of each kind for a process, made when it is first asked for, which takes a good part of a second. Control
tokens are unknown to all of them: text that looks like one is counted as it is spelt.
"""

from __future__ import annotations

import gzip
import unicodedata
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import distribution
from typing import Final, Literal, NamedTuple

import orjson
import tiktoken

EncodingName = Literal["o200k", "cl100k"]
#: How text is split before merging: tiktoken's own patterns, whose ranks would be downloaded.
_LETTERS: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERNS: Final[dict[str, str]] = {
    "o200k": "|".join(
        [
            rf"""[^\r\n\p{{L}}\p{{N}}]?{_LETTERS[0]}*{_LETTERS[1]}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
            rf"""[^\r\n\p{{L}}\p{{N}}]?{_LETTERS[0]}+{_LETTERS[1]}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
            r"""\p{N}{1,3}""",
            r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
            r"""\s*[\r\n]+""",
            r"""\s+(?!\S)""",
            r"""\s+""",
        ]
    ),
    "cl100k": (
        r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
        r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
    ),
}


class TextCounter(NamedTuple):
    """Text to ids as one tokenizer does it. own: that of the model itself. Thread-safe; any text is taken."""

    name: str
    encode: Callable[[str], Sequence[int]]
    own: bool = False


@cache
def text_counter(name: str) -> TextCounter:
    """OpenAI's encoding of this name: o200k or cl100k."""
    return TextCounter(name, _encode_by(name, read_ranks(packed_ranks(name)), PATTERNS[name]))


def packed_ranks(name: str) -> bytes:
    """The ranks of an encoding as text. They come with the distribution bpe-openai, whose code is not loaded."""
    with gzip.open(str(distribution("bpe-openai").locate_file(f"bpe_openai/data/{name}_base.tiktoken.gz"))) as lines:
        return lines.read()


def read_ranks(lines: bytes) -> dict[bytes, int]:
    """The tokens of a file of ranks, a line each: base64, a space, the rank. Raises ValueError."""
    words = lines.split()
    return dict(zip(map(a2b_base64, words[::2]), map(int, words[1::2]), strict=True))


def counter_by_ranks(name: str, lines: bytes, pattern: str, *, nfc: bool = False) -> TextCounter:
    """A model's own tokenizer from its file of ranks. Raises ValueError.

    tiktoken panics on a byte that it has no rank for, so those that the model lacks get ranks behind all others.
    """
    ranks = read_ranks(lines)
    absent = [byte for byte in (bytes([value]) for value in range(256)) if byte not in ranks]
    first = max(ranks.values(), default=-1) + 1
    ranks |= {byte: first + at for at, byte in enumerate(absent)}
    encode = _encode_by(name, ranks, pattern)
    if nfc:
        return TextCounter(name, lambda text: encode(unicodedata.normalize("NFC", text)), own=True)
    return TextCounter(name, encode, own=True)


def _encode_by(name: str, ranks: dict[bytes, int], pattern: str) -> Callable[[str], list[int]]:
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    encoding._mergeable_ranks = {}  # its Rust has them, too: 30 of 75 MiB in each worker
    return encoding.encode_ordinary


def counter_by_pieces(name: str, document: bytes) -> TextCounter:
    """A model's own tokenizer from its tokenizer.json. Raises ValueError."""
    from tokenizers import Tokenizer  # few need it, and it is large

    plain: dict[str, object] = {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    try:
        tokenizer = Tokenizer.from_str(orjson.dumps({**orjson.loads(document), **plain}).decode())
    except ValueError:
        raise
    except Exception as error:  # the package raises bare Exception
        raise ValueError(f"it is no tokenizer.json ({error})") from error
    return TextCounter(name, lambda text: tokenizer.encode(text, add_special_tokens=False).ids, own=True)
