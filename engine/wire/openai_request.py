"""A chat completion request: JSON to a frozen ChatRequest, or a 400 that names the field.

Source: OpenAI API reference, "Create chat completion". A field that would change the answer and is not supported is
refused; one that cannot is ignored and named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import invalid
from engine.llm.recipe import Recipe
from engine.wire.openai_fields import boolean, integer, present, refuse_unsupported
from engine.wire.openai_messages import parse_messages
from engine.wire.openai_recipe import KNOWN, MAX_TOP_LOGPROBS, parse_recipe, parse_stream

_KNOWN = (*KNOWN, "messages", "max_completion_tokens", "top_logprobs")
#: Not supported; these values ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What was asked, checked; whether it fits the model is not known yet."""

    model: Any  # looked up by the endpoint
    messages: list[dict[str, Any]]
    recipe: Recipe
    stream: bool
    include_usage: bool
    truncate: bool  # leave out the oldest turns rather than refuse
    ignored: tuple[str, ...]  # fields that were sent and have no effect


def parse_chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """The request in a JSON object. Raises RequestError."""
    fields = present(body)
    ignored = refuse_unsupported(fields, _KNOWN, _NEUTRAL)
    messages = parse_messages(fields.get("messages"))
    stream, include_usage = parse_stream(fields)
    return ChatRequest(
        model=fields.get("model"),
        messages=messages,
        recipe=parse_recipe(fields, max_tokens=_parse_max_tokens(fields), logprobs=_parse_logprobs(fields)),
        stream=stream,
        include_usage=include_usage,
        truncate=boolean(fields, "truncate", False),
        ignored=ignored,
    )


def _parse_max_tokens(fields: Mapping[str, Any]) -> int | None:
    given = [integer(fields, name, 1, low=1) for name in ("max_completion_tokens", "max_tokens") if name in fields]
    if len(set(given)) > 1:
        raise invalid("max_tokens and max_completion_tokens differ; send one of them", "max_tokens")
    return given[0] if given else None


def _parse_logprobs(fields: Mapping[str, Any]) -> int | None:
    count = integer(fields, "top_logprobs", 0, low=0, high=MAX_TOP_LOGPROBS)
    if boolean(fields, "logprobs", False):
        return count
    if count:
        raise invalid("top_logprobs is only allowed with logprobs: true", "top_logprobs")
    return None
