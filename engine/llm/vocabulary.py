"""Text to ids and ids to bytes for one chat model, by tiktoken over the model's own ranks.

User text can never become a control token here: control tokens are not among the ranks, and only `special` names
them. tiktoken must know all 256 bytes or it panics, so bytes that the model lacks get ranks past the end of its
vocabulary and become the unknown token. Knows no templates, no sampling and no ONNX Runtime.
"""

import binascii
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path

import tiktoken

from engine import model_folder
from engine.model_folder import ModelError, ModelFolder


class TextTooLong(ValueError):
    """Text of more bytes than the longest tokens of a full context could carry; it was not encoded."""


class Vocabulary:
    """The vocabulary of a chat model. Thread-safe; encoding long text takes long and releases the GIL."""

    def __init__(
        self,
        ranks: Mapping[bytes, int],
        *,
        count: int,
        pattern: str,
        special: Mapping[str, int],
        unknown_id: int | None,
    ) -> None:
        self.count = count
        self.special = special  # text of each control token and its id
        self.longest_token_bytes = max(map(len, ranks))
        self._unknown = [] if unknown_id is None else [unknown_id]
        self._bytes = [b""] * count
        for token, rank in ranks.items():
            self._bytes[rank] = token
        absent = [byte for byte in (bytes([value]) for value in range(256)) if byte not in ranks]
        complete = {**ranks, **{byte: count + at for at, byte in enumerate(absent)}}
        self._encoding = tiktoken.Encoding("model", pat_str=pattern, mergeable_ranks=complete, special_tokens={})

    def encode_text(self, text: str, *, max_tokens: int) -> list[int]:
        """Ids of ordinary text, never those of control tokens.

        Raises TextTooLong, before any work, when the text cannot fit `max_tokens`; ValueError for lone surrogates and
        for text that tiktoken's regular expressions cannot split.
        """
        size = len(text.encode())  # strict: lone surrogates have no bytes
        if size > max_tokens * self.longest_token_bytes:
            raise TextTooLong(f"the text has {size} bytes and cannot fit {max_tokens} tokens")
        try:
            ids = self._encoding.encode_ordinary(text)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in tiktoken's Rust is a BaseException
            raise ValueError(f"the text cannot be split into tokens ({error})") from error
        if max(ids, default=0) < self.count:
            return ids
        return [known for id_ in ids for known in ([id_] if id_ < self.count else self._unknown)]

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for control tokens and for ids that text never becomes."""
        return self._bytes[token]


def load_vocabulary(folder: ModelFolder) -> Vocabulary:
    """Read the folder's ranks. Raises ModelError."""
    facts = folder.manifest.tokenizer
    if facts.kind != "tiktoken" or facts.pattern is None:
        raise ModelError(f"{folder.path / model_folder.MANIFEST}: names no tiktoken vocabulary; import the model again")
    file = folder.file(facts.file)
    count = folder.chat.vocab_size
    ranks = _read_ranks(file)
    ids = {*ranks.values(), *facts.special.values(), facts.unknown_id or 0}
    if not ranks or min(ids) < 0 or max(ids) >= count:
        raise ModelError(f"{file}: does not fit the vocabulary of {count} in the manifest; import the model again")
    try:
        return Vocabulary(
            ranks, count=count, pattern=facts.pattern, special=dict(facts.special), unknown_id=facts.unknown_id
        )
    except ValueError as error:  # tiktoken's word on the pattern
        raise ModelError(f"{file}: cannot be used with the manifest ({error}); import the model again") from error


def _read_ranks(file: Path) -> dict[bytes, int]:
    try:
        lines = (line.split() for line in file.read_bytes().splitlines())
        return {b64decode(token): int(rank) for token, rank in lines}
    except (OSError, ValueError, binascii.Error) as error:
        raise ModelError(f"{file}: holds no tiktoken ranks ({error}); import the model again") from error
