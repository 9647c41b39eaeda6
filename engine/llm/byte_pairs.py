"""Byte-level BPE by tiktoken over a model's own ranks.

tiktoken must know all 256 bytes or it panics, so bytes that the model lacks get ranks past the end of its vocabulary
and become the unknown token.
"""

import unicodedata
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from pathlib import Path

import tiktoken

from engine.manifest import TokenizerFacts


def load(file: Path, facts: TokenizerFacts, count: int) -> tuple[list[bytes], Callable[[str], list[int]]]:
    """The bytes of every id below `count`, and the encoder of ordinary text. Raises OSError and ValueError."""
    if facts.pattern is None:
        raise ValueError("the manifest names no pattern")
    lines = (line.split() for line in file.read_bytes().splitlines())
    ranks = {a2b_base64(token): int(rank) for token, rank in lines}
    if not ranks or min(ranks.values()) < 0 or max(ranks.values()) >= count:
        raise ValueError(f"the ranks do not fit the vocabulary of {count}")
    return tokens_of(ranks, count), encoder(
        ranks, count=count, pattern=facts.pattern, unknown_id=facts.unknown_id, nfc=facts.nfc
    )


def tokens_of(ranks: Mapping[bytes, int], count: int) -> list[bytes]:
    """The bytes of every id; empty for those that have no rank."""
    tokens = [b""] * count
    for token, rank in ranks.items():
        tokens[rank] = token
    return tokens


def encoder(
    ranks: Mapping[bytes, int], *, count: int, pattern: str, unknown_id: int | None, nfc: bool = False
) -> Callable[[str], list[int]]:
    """Ordinary text to ids. nfc: text is composed first (Unicode's NFC). Raises ValueError for a bad pattern."""
    absent = [byte for byte in (bytes([value]) for value in range(256)) if byte not in ranks]
    complete = {**ranks, **{byte: count + at for at, byte in enumerate(absent)}}
    encoding = tiktoken.Encoding("model", pat_str=pattern, mergeable_ranks=complete, special_tokens={})
    unknown = [] if unknown_id is None else [unknown_id]

    def encode(text: str) -> list[int]:
        ids = encoding.encode_ordinary(unicodedata.normalize("NFC", text) if nfc else text)
        if max(ids, default=0) < count:
            return ids
        return [known for id_ in ids for known in ([id_] if id_ < count else unknown)]

    return encode


def byte_of_character() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 stands for itself, the other 68 are moved to U+0100 and above."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(moved)}
