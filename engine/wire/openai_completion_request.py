"""A completion request: JSON to a frozen CompletionRequest, or a 400 that names the field.

Source: OpenAI API reference, "Create completion", whose max_tokens is 16 unless it is given. A prompt is text, which
never becomes a control token, or token ids, which are taken as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import invalid
from engine.llm.recipe import Recipe
from engine.wire.openai_fields import boolean, integer, present, refuse_unsupported
from engine.wire.openai_recipe import KNOWN, MAX_TOP_LOGPROBS, is_token_ids, parse_recipe, parse_stream

_MAX_CHOICES = 64  # prompts times n
_DEFAULT_MAX_TOKENS = 16
_KNOWN = (*KNOWN, "prompt", "echo")
#: Not supported; these values ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {"suffix": ("",), "best_of": (1,)}


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What was asked, checked; whether it fits the model is not known yet."""

    model: Any  # looked up by the endpoint
    prompts: list[tuple[str, str | list[int]]]  # each with the place where it stands
    recipe: Recipe
    echo: bool  # the prompt's text before each choice's
    stream: bool
    include_usage: bool
    truncate: bool  # leave out the oldest tokens rather than refuse
    ignored: tuple[str, ...]  # fields that were sent and have no effect


def parse_completion_request(body: Mapping[str, Any]) -> CompletionRequest:
    """The request in a JSON object. Raises RequestError."""
    fields = present(body)
    ignored = refuse_unsupported(fields, _KNOWN, _NEUTRAL)
    prompts = _parse_prompts(fields.get("prompt"))
    logprobs = integer(fields, "logprobs", 0, low=0, high=MAX_TOP_LOGPROBS) if "logprobs" in fields else None
    max_tokens = integer(fields, "max_tokens", _DEFAULT_MAX_TOKENS, low=1)
    recipe = parse_recipe(fields, max_tokens=max_tokens, logprobs=logprobs)
    if len(prompts) * recipe.n > _MAX_CHOICES:
        raise invalid(f"{len(prompts)} prompts with n {recipe.n} are more than {_MAX_CHOICES} choices", "prompt")
    echo = boolean(fields, "echo", False)
    if echo and logprobs is not None:
        raise invalid("echo does not go with logprobs: those of a prompt are not computed", "echo")
    stream, include_usage = parse_stream(fields)
    return CompletionRequest(
        model=fields.get("model"),
        prompts=prompts,
        recipe=recipe,
        echo=echo,
        stream=stream,
        include_usage=include_usage,
        truncate=boolean(fields, "truncate", False),
        ignored=ignored,
    )


def _parse_prompts(value: Any) -> list[tuple[str, str | list[int]]]:
    """A text, a list of token ids, or a list of either; none of them empty."""
    if isinstance(value, str) or (is_token_ids(value) and value):
        prompts = [("prompt", value)]
    elif isinstance(value, list):
        prompts = [(f"prompt[{index}]", each) for index, each in enumerate(value)]
    else:
        raise invalid("prompt must be a string, a list of token ids, or a list of either", "prompt")
    for where, prompt in prompts:
        if not (isinstance(prompt, str) or is_token_ids(prompt)):
            raise invalid(f"{where} must be a string or a list of token ids", where)
        if not prompt:
            raise invalid(f"{where} is empty: there is nothing to complete", where)
    if not prompts:
        raise invalid("prompt must hold at least one prompt", "prompt")
    return prompts
