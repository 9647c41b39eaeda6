"""Texts -> rows of token ids, padded to one of a few lengths, so that texts of like length share a run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from engine.adapters.whole_text import WholeText
from engine.errors import invalid
from engine.tensor_facts import TextFacts

_QUICK_CHARACTERS = 2048  # about 1 ms


class TokenAdapter:
    """For one model. ``prepare`` may run on any number of threads."""

    def __init__(self, facts: TextFacts, text: WholeText, dtypes: Mapping[str, DTypeLike]) -> None:
        """dtypes: of the inputs that ``facts`` name."""
        self.facts = facts
        self.inputs = tuple(name for name in (facts.ids, facts.mask, facts.types) if name is not None)
        self._text = text
        self._dtypes = dtypes
        self._buckets = facts.buckets or (facts.max_tokens,)

    def is_quick(self, raw: bytes | str) -> bool:
        """A short text is."""
        return len(raw) <= _QUICK_CHARACTERS

    def prepare(self, raw: bytes | str, place: str) -> dict[str, NDArray[Any]]:
        """One row of each of the text's inputs, [1, tokens]. Bytes are read as UTF-8."""
        try:
            text = raw if isinstance(raw, str) else raw.decode()
        except UnicodeDecodeError as error:
            raise invalid(f"{place} is not UTF-8 at byte {error.start}", param="input") from None
        ids = self._text.encode(text, place)
        facts, length = self.facts, self._buckets[bisect_left(self._buckets, len(ids))]
        rows = {facts.ids: ids + [facts.pad_id] * (length - len(ids))}
        if facts.mask is not None:
            rows[facts.mask] = [1] * len(ids) + [0] * (length - len(ids))
        if facts.types is not None:
            rows[facts.types] = [0] * length
        return {name: np.array([row], self._dtypes[name]) for name, row in rows.items()}
