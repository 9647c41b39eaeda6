"""A chat completion request: JSON to a frozen ChatRequest, or a 400 that names the field.

Source: OpenAI API reference, "Create chat completion". ``top_k`` is an extension, as in other engines. A field that
would change the answer and is not supported is refused; one that cannot is ignored and named. Without a temperature it
is 1, OpenAI's default, whatever the model's own card recommends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import invalid
from engine.llm.sampling import Sampling
from engine.wire.openai_fields import boolean, integer, number, present, refuse_unsupported, unsupported
from engine.wire.openai_messages import parse_messages

_MAX_STOPS = 4
_MAX_STOP_CHARACTERS = 256
_KNOWN = (
    "model",
    "messages",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "n",
)
#: Not supported; these values ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "logit_bias": ({},),
    "logprobs": (False,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What was asked, checked; whether it fits the model's context is not known yet."""

    model: Any  # looked up by the endpoint
    messages: list[dict[str, Any]]
    stream: bool
    include_usage: bool
    max_tokens: int | None  # of the answer; None: as many as fit
    sampling: Sampling
    seed: int | None
    stops: tuple[str, ...]
    ignored: tuple[str, ...]  # fields that were sent and have no effect


def parse_chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """The request in a JSON object. Raises RequestError."""
    fields = present(body)
    ignored = refuse_unsupported(fields, _KNOWN, _NEUTRAL)
    messages = parse_messages(fields.get("messages"))
    if integer(fields, "n", 1, low=1) != 1:
        raise invalid("n must be 1: one choice per request is supported; send the request several times", "n")
    stream = boolean(fields, "stream", False)
    return ChatRequest(
        model=fields.get("model"),
        messages=messages,
        stream=stream,
        include_usage=_parse_stream_options(fields, stream),
        max_tokens=_parse_max_tokens(fields),
        sampling=Sampling(
            temperature=number(fields, "temperature", 1.0, low=0, high=2),
            top_k=max(0, integer(fields, "top_k", 0, low=-1)),
            top_p=_parse_top_p(fields),
        ),
        seed=integer(fields, "seed", 0, low=-(1 << 63), high=(1 << 64) - 1) if "seed" in fields else None,
        stops=_parse_stops(fields.get("stop", [])),
        ignored=ignored,
    )


def _parse_stream_options(fields: Mapping[str, Any], stream: bool) -> bool:
    if "stream_options" not in fields:
        return False
    options = fields["stream_options"]
    if not isinstance(options, dict):
        raise invalid("stream_options must be an object", "stream_options")
    if not stream:
        raise invalid("stream_options is only allowed with stream: true", "stream_options")
    options = present(options)
    for name in options:
        if name not in ("include_usage", "include_obfuscation"):
            raise unsupported(f"stream_options.{name}")
    return boolean(options, "include_usage", False)


def _parse_max_tokens(fields: Mapping[str, Any]) -> int | None:
    given = [integer(fields, name, 1, low=1) for name in ("max_completion_tokens", "max_tokens") if name in fields]
    if len(set(given)) > 1:
        raise invalid("max_tokens and max_completion_tokens differ; send one of them", "max_tokens")
    return given[0] if given else None


def _parse_top_p(fields: Mapping[str, Any]) -> float:
    top_p = number(fields, "top_p", 1.0, low=0, high=1)
    if top_p <= 0:
        raise invalid("top_p must be above 0: no token would be left", "top_p")
    return top_p


def _parse_stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise invalid("stop must be a string or a list of strings", "stop")
    if len(stops) > _MAX_STOPS:
        raise invalid(f"stop may hold at most {_MAX_STOPS} strings", "stop")
    if not all(0 < len(stop) <= _MAX_STOP_CHARACTERS for stop in stops):
        raise invalid(f"each stop string must have 1 to {_MAX_STOP_CHARACTERS} characters", "stop")
    return tuple(stops)
