"""What a request changes about logits before a token is drawn: penalties for repeating, a bias, tokens held back.

Pure. In this order: the repetition penalty divides positive logits and multiplies negative ones of all tokens that
stand in the prompt or the answer (CTRL, arXiv:1909.05858); frequency and presence penalties are subtracted for the
tokens of the answer, per occurrence and once (OpenAI API reference); the bias is added; and until an answer has
min_tokens tokens those that would end it are excluded.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from engine.llm.row import ChangedRow, Row
from engine.llm.sampling import Sampling


class Penalties:
    """One sequence's changes. prompt: its tokens; end_ids: those that end its answer."""

    def __init__(self, sampling: Sampling, prompt: Collection[int], end_ids: Collection[int]) -> None:
        self._sampling = sampling
        self._repeats = sampling.repetition_penalty != 1.0
        self._counts = bool(self._repeats or sampling.presence_penalty or sampling.frequency_penalty)
        self._num_chosen = 0
        held = end_ids if sampling.min_tokens else ()
        seen = set(prompt) if self._repeats else set()
        # The tokens that anything is changed about, and for each what was counted and what is to be added.
        ids = sorted({*seen, *sampling.logit_bias, *held})
        self._ids = np.array(ids, np.int64)
        self._place = {token: at for at, token in enumerate(ids)}
        self._seen = np.array([token in seen for token in ids], bool)
        self._num_in_answer = np.zeros(len(ids), np.float32)
        self._bias = np.array([sampling.logit_bias.get(token, 0.0) for token in ids], np.float32)
        self._held = [self._place[token] for token in held]

    def apply(self, row: Row) -> Row:
        """The row from which the next token is to be chosen."""
        sampling = self._sampling
        holding = self._num_chosen < sampling.min_tokens
        if not len(self._ids) or not (holding or self._counts or sampling.logit_bias):
            return row
        logits = row.vocabulary[self._ids]
        if self._repeats:
            penalty = sampling.repetition_penalty
            logits = np.where(self._seen, np.where(logits > 0, logits / penalty, logits * penalty), logits)
        logits -= sampling.frequency_penalty * self._num_in_answer
        logits -= sampling.presence_penalty * (self._num_in_answer > 0)
        logits += self._bias
        if holding:
            logits[self._held] = -np.inf
        return ChangedRow(row, self._ids, logits)

    def count(self, token: int) -> None:
        """The token was chosen."""
        self._num_chosen += 1
        if not self._counts:
            return
        at = self._place.setdefault(token, len(self._ids))
        if at == len(self._ids):
            self._ids = np.append(self._ids, token)
            self._seen = np.append(self._seen, False)
            self._num_in_answer = np.append(self._num_in_answer, np.float32(0))
            self._bias = np.append(self._bias, np.float32(0))
        self._seen[at] = True
        self._num_in_answer[at] += 1
