"""How many tokens a request has used, as its upstream tells it; and how a stream is asked to tell. Pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from proxy.llm.splice import find_member, with_first_member, with_member

MAX_TOKENS: Final = 1 << 31  # of one request; what claims more is not believed
_ODD: Final = -1
_ASKING: Final = b'{"include_usage":true}'


class Usage(NamedTuple):
    """Tokens of all prompts and of all answers of one request. cached_tokens: of the prompts, those that the upstream
    did not read anew. estimated: the upstream has not told, or not all of it."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    estimated: bool = False

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


def usage_in(document: Any) -> Usage | None:
    """What an answer or an event of its stream says was used; None if it says nothing, or anything of it cannot be
    believed.

    The names are those of chat completions, completions and embeddings, or of responses (``input_tokens``), where the
    last event holds the whole ``response``.
    """
    if not isinstance(document, dict):
        return None
    told = document.get("usage")
    if told is None and isinstance(response := document.get("response"), dict):
        told = response.get("usage")
    if not isinstance(told, dict):
        return None
    prompt = _tokens(told, "prompt_tokens", "input_tokens")
    completion = _tokens(told, "completion_tokens", "output_tokens")
    total = _tokens(told, "total_tokens")
    if _ODD in (prompt, completion, total):
        return None
    if prompt is None:
        if total is None:
            return None
        prompt = max(0, total - (completion or 0))
    details = told.get("prompt_tokens_details") or told.get("input_tokens_details")
    cached = _tokens(details, "cached_tokens") if isinstance(details, dict) else None
    return Usage(prompt, completion or 0, min(max(0, cached or 0), prompt))


def is_usage_chunk(document: Any) -> bool:
    """Whether an event of a stream says nothing but the usage: the one more that ``include_usage`` asks for."""
    return isinstance(document, dict) and document.get("choices") == [] and isinstance(document.get("usage"), dict)


def asking_for_usage(body: bytes, document: dict[str, Any]) -> bytes | None:
    """The body of a request for a stream that is to end with its usage, otherwise as it was written; None if its
    ``stream_options`` are none, which is for the upstream to say. document: the parsed body."""
    if "stream_options" not in document:
        return with_first_member(body, "stream_options", _ASKING)
    options = document["stream_options"]
    if options is None:
        return with_member(body, "stream_options", _ASKING)
    if not isinstance(options, dict) or (found := find_member(body, "stream_options")) is None:
        return None
    begin, end = found
    return body[:begin] + with_member(body[begin:end], "include_usage", b"true") + body[end:]


def _tokens(table: dict[str, Any], *names: str) -> int | None:
    """The first of these numbers that is told; None: none is, _ODD: it cannot be one of tokens."""
    value = next((value for name in names if (value := table.get(name)) is not None), None)
    if value is None:
        return None
    whole = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS
    return int(value) if whole and value == int(value) else _ODD
