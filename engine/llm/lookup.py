"""Prompt look-up: where a text ended like this before, it may go on as it did then.

Pure. How often it does is counted on all tokens of the text, drafted or not, by the length of the match: two equal
tokens say little, ten say nearly everything. So a text that begins to quote is noticed at once, and one that only seems
to is given up after a few tokens. Each token costs a look into a table.
"""

from __future__ import annotations

from itertools import pairwise

_COUNTED_TOKENS = 31  # a longer match is as good as one of this length
_FIRST_TRIES = 4.0  # a text's own counts begin from what was measured on answers of a small model
_FIRST_HITS = (0.0, 0.0, 2.0, 2.8, 3.4, 3.6)  # by the bit length of the match's length


class Lookup:
    """Where a text that grows has gone on from what it now ends with. tokens: the text; it grows outside."""

    __slots__ = ("_after", "_at", "_hits", "_matched", "_num_seen", "_tokens", "_tries")

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._num_seen = len(tokens)
        # For each pair of tokens the place after it, the newest one that is not the text's end.
        self._after = dict(zip(pairwise(tokens), range(2, len(tokens)), strict=False))
        self._hits = list(_FIRST_HITS)
        self._tries = [_FIRST_TRIES] * len(_FIRST_HITS)
        self._find()

    def follow(self) -> None:
        """Count what the tokens since the last call say of the guesses, and find the place that the end is like."""
        tokens = self._tokens
        for at in range(self._num_seen, len(tokens)):
            if at > 1:
                self._after[tokens[at - 2], tokens[at - 1]] = at
            self._num_seen = at + 1
            hit = self._at is not None and tokens[self._at] == tokens[at]
            if self._at is not None:
                self._tries[_kind(self._matched)] += 1
                self._hits[_kind(self._matched)] += hit
            if self._at is not None and hit:
                self._at += 1
                self._matched += 1
            else:
                self._find()

    def chances(self, most: int, least: float = 0.0) -> list[float]:
        """For each length up to ``most``: the probability that a draft of it is right to its end, while it is above
        ``least``."""
        chances, chance = [], 1.0
        for ahead in range(0 if self._at is None else most):
            kind = _kind(self._matched + ahead)
            chance *= self._hits[kind] / self._tries[kind]
            if chance <= least:
                break
            chances.append(chance)
        return chances

    def draft(self, length: int) -> list[int]:
        """The next tokens if the text goes on as it did; what would lie beyond its end repeats the draft."""
        draft: list[int] = []
        if self._at is not None:
            for at in range(self._at, self._at + length):
                draft.append(self._tokens[at] if at < len(self._tokens) else draft[at - len(self._tokens)])
        return draft

    def _find(self) -> None:
        """The newest place whose two tokens before it are the text's last ones, and how many more are alike."""
        tokens, end = self._tokens, self._num_seen
        self._at = self._after.get((tokens[end - 2], tokens[end - 1])) if end > 1 else None
        self._matched = 2
        if self._at is not None:
            most = min(self._at, _COUNTED_TOKENS)
            while self._matched < most and tokens[self._at - self._matched - 1] == tokens[end - self._matched - 1]:
                self._matched += 1


def _kind(num_matched: int) -> int:
    """Which matches are counted together: those of a like length, which says most of how far one goes on."""
    return min(num_matched, _COUNTED_TOKENS).bit_length()
