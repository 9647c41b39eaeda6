"""What chat completions and completions ask alike: how answers are made, and whether they are streamed.

Source: OpenAI API reference. ``top_k``, ``min_p``, ``repetition_penalty``, ``min_tokens``, ``stop_token_ids``,
``ignore_eos`` are extensions under the names that other engines gave them; ``truncate`` is our own. Without a
temperature it is 1, OpenAI's default, whatever the model's own card recommends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from engine.errors import invalid
from engine.llm.recipe import Recipe
from engine.llm.sampling import Sampling
from engine.wire.openai_fields import boolean, integer, number, present, unsupported

MAX_TOP_LOGPROBS = 20
_MAX_N = 8
_MAX_STOPS = 4
_MAX_STOP_CHARACTERS = 256
_MAX_STOP_TOKENS = 64
_MAX_BIASED = 1024
KNOWN = (
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "n",
    "truncate",
)


def parse_recipe(fields: Mapping[str, Any], *, max_tokens: int | None, logprobs: int | None) -> Recipe:
    """The recipe in a request's fields but for what the endpoints say differently. Raises RequestError."""
    min_tokens = integer(fields, "min_tokens", 0, low=0)
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid(f"min_tokens must be at most max_tokens, which is {max_tokens}", "min_tokens")
    return Recipe(
        sampling=Sampling(
            temperature=number(fields, "temperature", 1.0, low=0, high=2),
            top_k=max(0, integer(fields, "top_k", 0, low=-1)),
            top_p=_parse_top_p(fields),
            min_p=number(fields, "min_p", 0.0, low=0, high=1),
            repetition_penalty=number(fields, "repetition_penalty", 1.0, low=0.1, high=10),
            presence_penalty=number(fields, "presence_penalty", 0.0, low=-2, high=2),
            frequency_penalty=number(fields, "frequency_penalty", 0.0, low=-2, high=2),
            logit_bias=_parse_logit_bias(fields.get("logit_bias", {})),
            min_tokens=min_tokens,
            logprobs=logprobs,
        ),
        seed=integer(fields, "seed", 0, low=-(1 << 63), high=(1 << 64) - 1) if "seed" in fields else None,
        max_tokens=max_tokens,
        stops=_parse_stops(fields.get("stop", [])),
        stop_token_ids=_parse_stop_token_ids(fields.get("stop_token_ids", [])),
        ignore_eos=boolean(fields, "ignore_eos", False),
        n=integer(fields, "n", 1, low=1, high=_MAX_N),
    )


def parse_stream(fields: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether the answer is streamed, and whether its stream ends with the usage. Raises RequestError."""
    stream = boolean(fields, "stream", False)
    if "stream_options" not in fields:
        return stream, False
    options = fields["stream_options"]
    if not isinstance(options, dict):
        raise invalid("stream_options must be an object", "stream_options")
    if not stream:
        raise invalid("stream_options is only allowed with stream: true", "stream_options")
    options = present(options)
    for name in options:
        if name not in ("include_usage", "include_obfuscation"):
            raise unsupported(f"stream_options.{name}")
    return stream, boolean(options, "include_usage", False)


def _parse_top_p(fields: Mapping[str, Any]) -> float:
    top_p = number(fields, "top_p", 1.0, low=0, high=1)
    if top_p <= 0:
        raise invalid("top_p must be above 0: no token would be left", "top_p")
    return top_p


def _parse_logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, dict) or len(value) > _MAX_BIASED:
        raise invalid(f"logit_bias must be an object of at most {_MAX_BIASED} tokens", "logit_bias")
    bias = {}
    for key in value:
        if not (key.isascii() and key.isdigit() and len(key) <= 9):
            raise invalid('logit_bias must have token ids as keys, such as {"50256": -100}', "logit_bias")
        bias[int(key)] = number({"logit_bias": value[key]}, "logit_bias", 0.0, low=-100, high=100)
    return bias


def _parse_stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise invalid("stop must be a string or a list of strings", "stop")
    if len(stops) > _MAX_STOPS:
        raise invalid(f"stop may hold at most {_MAX_STOPS} strings", "stop")
    if not all(0 < len(stop) <= _MAX_STOP_CHARACTERS for stop in stops):
        raise invalid(f"each stop string must have 1 to {_MAX_STOP_CHARACTERS} characters", "stop")
    return tuple(stops)


def _parse_stop_token_ids(value: Any) -> tuple[int, ...]:
    if not is_token_ids(value) or len(value) > _MAX_STOP_TOKENS:
        raise invalid(f"stop_token_ids must be a list of at most {_MAX_STOP_TOKENS} token ids", "stop_token_ids")
    return tuple(value)


def is_token_ids(value: Any) -> TypeGuard[list[int]]:
    """Whether it is a list of whole numbers that could be token ids, perhaps an empty one."""
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
