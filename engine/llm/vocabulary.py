"""Text to ids and ids to bytes for one chat model, by tiktoken over its ranks or by `tokenizers`.

User text can never become a control token here: neither encoder knows them, and only `special` names them. Knows no
templates, no sampling and no ONNX Runtime.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine.llm import byte_pairs, pieces
from engine.manifest import TokenizerFacts
from engine.model_folder import MANIFEST, ModelError, ModelFolder


class TextTooLong(ValueError):
    """Text of more bytes than the longest tokens of a full context could carry; it was not encoded."""


class Vocabulary:
    """The vocabulary of a chat model. Thread-safe; encoding long text takes long."""

    def __init__(
        self, tokens: Sequence[bytes], encode: Callable[[str], list[int]], *, special: Mapping[str, int]
    ) -> None:
        """tokens: the bytes of every id, empty for what is no text; encode: ordinary text to ids."""
        self.count = len(tokens)
        self.special = special  # text of each control token and its id
        self.longest_token_bytes = max(map(len, tokens))
        self._tokens = tokens
        self._encode = encode

    def encode_text(self, text: str, *, max_tokens: int) -> list[int]:
        """Ids of ordinary text, never those of control tokens.

        Raises TextTooLong, before any work, when the text cannot fit `max_tokens`; ValueError for lone surrogates and
        for text that the encoder's regular expressions cannot split.
        """
        size = len(text.encode())  # strict: lone surrogates have no bytes
        if size > max_tokens * self.longest_token_bytes:
            raise TextTooLong(f"the text has {size} bytes and cannot fit {max_tokens} tokens")
        try:
            return self._encode(text)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in the encoders' Rust is a BaseException
            raise ValueError(f"the text cannot be split into tokens ({error})") from error

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for control tokens and for ids that text never becomes."""
        return self._tokens[token]


def load_vocabulary(folder: ModelFolder) -> Vocabulary:
    """Read the folder's ranks or its tokenizer.json. Raises ModelError."""
    facts = folder.tokenizer
    count = folder.chat.vocab_size
    file = folder.file(facts.file)
    ids = {*facts.special.values(), facts.unknown_id or 0}
    if min(ids) < 0 or max(ids) >= count or not facts.special.keys() >= {*facts.shown}:
        raise ModelError(f"{folder.path / MANIFEST}: does not fit the vocabulary of {count}; import the model again")
    try:
        return read_vocabulary(file, facts, count)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: cannot be used with the manifest ({error}); import the model again") from error


def read_vocabulary(file: Path, facts: TokenizerFacts, count: int) -> Vocabulary:
    """The vocabulary of `count` ids in a file of ranks or a tokenizer.json. Raises OSError and ValueError."""
    load = byte_pairs.load if facts.kind == "tiktoken" else pieces.load
    tokens, encode = load(file, facts, count)
    for text in facts.shown:
        tokens[facts.special[text]] = text.encode()
    return Vocabulary(tokens, encode, special=dict(facts.special))
