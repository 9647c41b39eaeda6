"""A text as a model's tokenizer sees it: whole or not at all, and no text can become a special token.

Knows no model and no HTTP.
"""

from __future__ import annotations

from tokenizers import Tokenizer

from engine.errors import Kind, RequestError, invalid

# WordPiece takes at most 100 characters of a word as pieces; what has more than that per token is nearly all blank.
_CHARACTERS_PER_TOKEN = 100


class WholeText:
    """Encodes texts. ``encode`` may run on any thread; it holds the GIL for short times only."""

    def __init__(self, tokenizer: Tokenizer, *, max_tokens: int) -> None:
        """max_tokens: special tokens included. The tokenizer's own cutting and padding is turned off."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self.max_tokens = max_tokens
        self.max_characters = max_tokens * _CHARACTERS_PER_TOKEN
        self._tokenizer = tokenizer

    def encode(self, text: str, place: str) -> list[int]:
        """The ids of one text, special tokens included. Raises RequestError, 400 or 422, that names ``place``."""
        if not text:
            raise invalid(f"{place} is an empty string; leave it out or send some text", param="input")
        if len(text) > self.max_characters:
            raise RequestError(
                Kind.CONTEXT_LENGTH,
                f"{place} has {len(text)} characters; a text for this model may have at most {self.max_characters}"
                f" characters and {self.max_tokens} tokens; split the text",
                param="input",
            )
        try:
            # Of the encode methods this one lets other threads run meanwhile, and it is the fastest (1 MB: 0.4 s).
            ids = list(self._tokenizer.encode_batch_fast([text])[0].ids)
        except TypeError:  # the only str that the tokenizer does not take
            raise invalid(f"{place} contains a lone surrogate, which is not text", param="input") from None
        if len(ids) > self.max_tokens:
            raise too_long(len(ids), self.max_tokens, place)
        return ids


def too_long(num_tokens: int, max_tokens: int, place: str) -> RequestError:
    """A 422 for a text of more tokens than there may be."""
    return RequestError(
        Kind.CONTEXT_LENGTH,
        f"{place} has {num_tokens} tokens, of which at most {max_tokens} fit this model; split the text",
        param="input",
    )
