"""What a choice looks like, in chat completions and in completions, and its log probabilities in either.

Source: OpenAI API reference, "chat completion chunk object", ``logprobs``; "completion object", ``logprobs``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.llm.sampling import Choice

Spell = Callable[[int], tuple[str, bytes | None]]  # a token's text, and its bytes: None for control tokens
_LEAST = -9999.0  # what OpenAI writes for the logarithm of nothing


class ChatForm:
    """A message, or what is new of it."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, spell: Spell) -> None:
        self._spell = spell

    def opening(self, index: int) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def piece(self, index: int, text: str, logprobs: Sequence[Choice]) -> dict[str, Any]:
        return {"delta": {"content": text}, "logprobs": self._logprobs(logprobs)}

    def last(self) -> dict[str, Any]:
        return {"delta": {}, "logprobs": None}

    def whole(self, index: int, text: str, logprobs: Sequence[Choice]) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"message": message, "logprobs": self._logprobs(logprobs)}

    def _logprobs(self, choices: Sequence[Choice]) -> dict[str, Any] | None:
        if not choices:
            return None
        content = [
            {
                **self._entry(choice.token, choice.logprob or 0.0),
                "top_logprobs": [self._entry(token, logprob) for token, logprob in choice.top],
            }
            for choice in choices
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text, raw = self._spell(token)
        return {"token": text, "logprob": max(logprob, _LEAST), "bytes": None if raw is None else list(raw)}


class CompletionForm:
    """Text, with the prompt before it where that was asked for. echoes: by choice, "" for none."""

    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, spell: Spell, echoes: Sequence[str]) -> None:
        self._spell = spell
        self._echoes = echoes
        self._offsets = [len(echo) for echo in echoes]  # characters before what comes next, by choice

    def opening(self, index: int) -> dict[str, Any] | None:
        return {"text": self._echoes[index], "logprobs": None} if self._echoes[index] else None

    def piece(self, index: int, text: str, logprobs: Sequence[Choice]) -> dict[str, Any]:
        return {"text": text, "logprobs": self._logprobs(index, logprobs)}

    def last(self) -> dict[str, Any]:
        return {"text": "", "logprobs": None}

    def whole(self, index: int, text: str, logprobs: Sequence[Choice]) -> dict[str, Any]:
        return self.piece(index, self._echoes[index] + text, logprobs)

    def _logprobs(self, index: int, choices: Sequence[Choice]) -> dict[str, Any] | None:
        if not choices:
            return None
        texts = [self._spell(choice.token)[0] for choice in choices]
        offsets = []
        for text in texts:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(text)
        best = [{self._spell(token)[0]: max(logprob, _LEAST) for token, logprob in each.top} for each in choices]
        own = [max(choice.logprob or 0.0, _LEAST) for choice in choices]
        return {"tokens": texts, "token_logprobs": own, "top_logprobs": best, "text_offset": offsets}
