"""Text and token ids -> the padded int32 arrays that a text encoder takes.

Owns what may be embedded: every text whole or not at all. Nothing is ever cut: a text that is too long is refused, by
its place in the request. Text that spells a special token is ordinary text. Knows no runtime and no HTTP.

Token ids must come from this model's own tokenizer. Ids outside its vocabulary are refused, which unmasks most arrays
made for another model. The start and end tokens are added unless the array has both already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine.adapters.whole_text import WholeText, too_long
from engine.errors import invalid
from engine.model_folder import ModelError, ModelFolder

Text = str | Sequence[int]


class TextAdapter:
    """Encodes for one model. ``encode`` may run on any thread; it holds the GIL for short times only."""

    def __init__(self, tokenizer: Tokenizer, *, max_tokens: int, pad_id: int = 0) -> None:
        """max_tokens: special tokens included. Raises ValueError when the tokenizer has no start and end token."""
        self._whole = WholeText(tokenizer, max_tokens=max_tokens)
        frame = tokenizer.encode("").ids
        if len(frame) != 2:
            raise ValueError(f"the tokenizer must put one token before a text and one behind, not {len(frame)} in all")
        self.start_id, self.end_id = frame
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
        self.max_tokens = max_tokens
        self.max_characters = self._whole.max_characters
        self._pad_id = pad_id

    def encode(self, text: Text, place: str = "input") -> list[int]:
        """The ids of one text, start and end included. Raises RequestError, 400 or 422, that names ``place``."""
        return self._whole.encode(text, place) if isinstance(text, str) else self._frame_ids(text, place)

    def pad(self, rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """token_ids int32[rows, longest] padded on the right, and lengths int32[rows]."""
        lengths = np.array([len(row) for row in rows], np.int32)
        token_ids = np.full((len(rows), int(lengths.max())), self._pad_id, np.int32)
        for padded, row in zip(token_ids, rows, strict=True):
            padded[: len(row)] = row
        return token_ids, lengths

    def _frame_ids(self, ids: Sequence[int], place: str) -> list[int]:
        if not ids:
            raise invalid(f"{place} is an empty array of tokens; leave it out or send some", param="input")
        if len(ids) > self.max_tokens:
            raise too_long(len(ids), self.max_tokens, place)
        if (outside := next((id for id in ids if not 0 <= id < self.vocab_size), None)) is not None:
            raise invalid(
                f"{place} has the token {outside}, outside this model's vocabulary of {self.vocab_size}; send text, or"
                " ids made by this model's own tokenizer",
                param="input",
            )
        framed = len(ids) >= 2 and ids[0] == self.start_id and ids[-1] == self.end_id
        whole = list(ids) if framed else [self.start_id, *ids, self.end_id]
        if len(whole) > self.max_tokens:
            raise too_long(len(whole), self.max_tokens, place)
        return whole


def load_text_adapter(folder: ModelFolder) -> TextAdapter:
    """The adapter of an embedding model folder. Raises ModelError when its tokenizer cannot be used."""
    path = folder.file(folder.tokenizer.file)
    facts = folder.embedding
    try:
        tokenizer: Any = Tokenizer.from_file(str(path))
        return TextAdapter(tokenizer, max_tokens=facts.max_tokens, pad_id=facts.pad_id)
    except Exception as error:  # the package raises bare Exception for a malformed file
        raise ModelError(f"{path}: cannot be used as a tokenizer ({error}); import the model again") from error
