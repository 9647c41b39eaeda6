"""Text to ids and ids to bytes for one chat model. Knows no templates, no sampling and no ONNX Runtime."""

from collections.abc import Mapping

from engine.model_folder import ModelFolder


class TextTooLong(ValueError):
    """Text that has more bytes than any prompt that fits; refused before it is encoded."""


class Vocabulary:
    """The vocabulary of a chat model. Thread-safe: encoding releases the GIL, so run it in a thread."""

    count: int
    special: Mapping[str, int]  # text of each control token to its id
    longest_token_bytes: int

    def encode_text(self, text: str, *, max_tokens: int) -> list[int]:
        """Ids of ordinary text, never those of control tokens; TextTooLong when it cannot fit `max_tokens`."""
        raise NotImplementedError

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for control tokens and ids without a text."""
        raise NotImplementedError


def load_vocabulary(folder: ModelFolder) -> Vocabulary:
    """Read the folder's ranks. Raises ModelError."""
    raise NotImplementedError
