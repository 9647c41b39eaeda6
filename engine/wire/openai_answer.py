"""The bytes of a chat completion: whole, or chunk by chunk, in OpenAI's shape.

A Reply knows one answer's id and instant, which are equal in all its chunks, and pre-builds what surrounds a piece of
text, so that a token costs one small dump. Source: OpenAI API reference, "chat completion object" and "chunk object".
"""

from __future__ import annotations

from typing import Any

import orjson

from engine.wire import sse

MEDIA_TYPE = "application/json"


class Reply:
    """One answer. usage: whether its stream was asked to end with the usage."""

    def __init__(self, id_: str, model: str, created: int, *, usage: bool) -> None:
        self._head = {"id": id_, "created": created, "model": model}
        self._usage = usage
        # The text is the only part of a chunk that changes: cut a chunk in two around a text that is not there yet.
        whole = self._chunk({"content": ""}, None)
        at = whole.rindex(b'"content":""') + len(b'"content":')
        self._before, self._after = whole[:at], whole[at + len(b'""') :]

    def first_chunk(self) -> bytes:
        """The event that says whose turn it is."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def text_chunk(self, text: str) -> bytes:
        """An event with a piece of the text."""
        return self._before + orjson.dumps(text) + self._after

    def last_chunks(self, finish_reason: str, num_prompt: int, num_output: int) -> bytes:
        """The events after the text: why it ended, the usage if it was asked for, and the end of the stream."""
        events = self._chunk({}, finish_reason)
        if self._usage:
            body = {**self._head, "object": "chat.completion.chunk", "choices": []}
            events += sse.event(orjson.dumps({**body, "usage": _usage(num_prompt, num_output)}))
        return events + sse.DONE

    def whole(self, text: str, finish_reason: str, num_prompt: int, num_output: int) -> bytes:
        """The body of an answer that is not streamed."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        body = {**self._head, "object": "chat.completion", "choices": [choice]}
        return orjson.dumps({**body, "usage": _usage(num_prompt, num_output)})

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        body: dict[str, Any] = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        if self._usage:
            body["usage"] = None
        return sse.event(orjson.dumps(body))


def _usage(num_prompt: int, num_output: int) -> dict[str, int]:
    return {"prompt_tokens": num_prompt, "completion_tokens": num_output, "total_tokens": num_prompt + num_output}
