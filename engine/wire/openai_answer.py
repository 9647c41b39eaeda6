"""The bytes of an answer in OpenAI's manner: whole, or chunk by chunk, for any number of choices.

A Reply knows one answer's id and instant, which are equal in all its chunks, and pre-builds what surrounds a piece of
text, so that a token costs one small dump. What a choice looks like is its Form's: see ``engine.wire.openai_forms``.
Source: OpenAI API reference, "chat completion object" and "chunk object", "completion object".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import orjson

from engine.llm.sampling import Choice
from engine.wire import sse

MEDIA_TYPE = "application/json"
_TEXT = "headrace.text"  # stands for a text that is not there yet


class Usage(NamedTuple):
    """Tokens of the prompts and of all choices."""

    num_prompt: int
    num_output: int
    num_cached: int  # of the prompts, which were not read for this answer


class Told(NamedTuple):
    """All of one choice."""

    text: str
    logprobs: Sequence[Choice]
    finish_reason: str


class Form(Protocol):
    """What a choice looks like."""

    object: str  # of a whole answer
    chunk_object: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """The fields of the choice in its first chunk; None: it needs no such chunk."""
        ...

    def piece(self, index: int, text: str, logprobs: Sequence[Choice]) -> dict[str, Any]:
        """Its fields in a chunk with text; called in the order of the text."""
        ...

    def last(self) -> dict[str, Any]:
        """Its fields in the chunk with its finish_reason."""
        ...

    def whole(self, index: int, text: str, logprobs: Sequence[Choice]) -> dict[str, Any]:
        """Its fields in a whole answer."""
        ...


class Reply:
    """One answer. usage: whether its stream was asked to end with the usage; notes: see ``engine.wire.notes``."""

    def __init__(
        self, id_: str, model: str, created: int, form: Form, *, usage: bool, notes: Mapping[str, int] | None = None
    ) -> None:
        self._form = form
        self._head: dict[str, Any] = {"id": id_, "created": created, "model": model}
        if notes:
            self._head["headrace"] = dict(notes)
        self._usage = usage
        self._around: dict[int, tuple[bytes, bytes]] = {}  # of each choice: a chunk before and after its text

    def opening(self, num_choices: int) -> bytes:
        """The events before all text."""
        fields = [(index, self._form.opening(index)) for index in range(num_choices)]
        return b"".join(self._chunk(index, each, None) for index, each in fields if each is not None)

    def piece(self, index: int, text: str, logprobs: Sequence[Choice] = ()) -> bytes:
        """An event with a piece of a choice's text."""
        if logprobs:
            return self._chunk(index, self._form.piece(index, text, logprobs), None)
        before, after = self._around.get(index) or self._cut(index)
        return before + orjson.dumps(text) + after

    def last(self, index: int, finish_reason: str) -> bytes:
        """The event that says why a choice ended."""
        return self._chunk(index, self._form.last(), finish_reason)

    def closing(self, usage: Usage) -> bytes:
        """The events after all choices: the usage if it was asked for, and the end of the stream."""
        if not self._usage:
            return sse.DONE
        body = {**self._head, "object": self._form.chunk_object, "choices": [], "usage": usage_fields(usage)}
        return sse.event(orjson.dumps(body)) + sse.DONE

    def whole(self, choices: Sequence[Told], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        fields = [
            {"index": index, **self._form.whole(index, told.text, told.logprobs), "finish_reason": told.finish_reason}
            for index, told in enumerate(choices)
        ]
        return orjson.dumps(
            {**self._head, "object": self._form.object, "choices": fields, "usage": usage_fields(usage)}
        )

    def _cut(self, index: int) -> tuple[bytes, bytes]:
        """Cut a chunk of this choice around its text, once."""
        chunk = self._chunk(index, self._form.piece(index, _TEXT, ()), None)
        before, _, after = chunk.rpartition(orjson.dumps(_TEXT))
        self._around[index] = before, after
        return before, after

    def _chunk(self, index: int, fields: Mapping[str, Any], finish_reason: str | None) -> bytes:
        choice = {"index": index, **fields, "finish_reason": finish_reason}
        body: dict[str, Any] = {**self._head, "object": self._form.chunk_object, "choices": [choice]}
        if self._usage:
            body["usage"] = None
        return sse.event(orjson.dumps(body))


def usage_fields(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.num_prompt,
        "completion_tokens": usage.num_output,
        "total_tokens": usage.num_prompt + usage.num_output,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached},
    }
