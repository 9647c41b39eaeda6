"""A document too long for a model, by summaries of its parts: what is asked of each part, and what is put together.

Each window of the document is summarised by the model itself in a request of its own (map); the summaries stand in
the document's place in the client's request (merge), in their order and marked as what they are. Their length is what
the context leaves to each. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from proxy.config import Table
from proxy.llm.context import ANSWER_TOKENS, MESSAGE_TOKENS
from proxy.llm.places import Place, replaced
from proxy.llm.segments import segments, sentences
from proxy.llm.shorten import shorten
from proxy.llm.truncate import Count, Cut, longest, tokens_of
from proxy.llm.windows import text_of, windows

#: A summary of less says nothing.
_LEAST_TOKENS: Final = 16
_MARK_TOKENS: Final = 12  # what marks a summary as one
_PROMPT: Final = (
    "Summarize this part of a longer text. Keep names, numbers, decisions and open questions. "
    "Write the summary alone, in the language of the text."
)


class Summaries(Table):
    """Of windows, by requests to where the client's request goes."""

    prompt: Annotated[str, Field(min_length=1, max_length=4096)] = _PROMPT  # said to the model before each part
    tokens: Annotated[int, Field(ge=_LEAST_TOKENS)] = 256  # of one summary at most
    most: Annotated[int, Field(ge=2, le=64)] = 16  # parts of one document; a longer one is refused
    at_once: Annotated[int, Field(ge=1, le=16)] = 4  # requests for one document


class Plan(NamedTuple):
    """value: the messages or the prompt, where the document is at ``place``. tokens: of one summary. cost: of the
    prompts and answers of all requests, the client's prompt among them, at most. others: tokens of what is not the
    document."""

    value: Any
    place: Place
    parts: tuple[str, ...]
    tokens: int
    cost: int
    others: int


def plan(
    value: Any, room: int, context: int, max_len: int, stride: int, how: Summaries, count: Count
) -> Plan | None:  # fmt: skip
    """How messages or a prompt come to no more than ``room`` tokens. None: they do not. context: tokens of one request
    with its answer."""
    found = longest(value)
    if found is None:
        return None
    place, document = found
    total, own = tokens_of(value, count), count(document)
    if own > max_len + stride * how.most:
        return None  # nobody need look closer
    known = list(segments(sentences(document), max_len, count))
    slices = windows(known, max_len, stride)
    if not 2 <= len(slices) <= how.most:
        return None
    others = total - own
    tokens = min(how.tokens, (room - others) // len(slices) - _MARK_TOKENS)
    asked = count(how.prompt) + 2 * MESSAGE_TOKENS + ANSWER_TOKENS
    if tokens < _LEAST_TOKENS or asked + max_len + tokens > context:
        return None
    parts = tuple(text_of(known, each) for each in slices)
    read = sum(sum(segment.tokens for segment in known[begin:end]) for begin, end in slices)
    written = len(parts) * (tokens + _MARK_TOKENS)
    return Plan(value, place, parts, tokens, read + len(parts) * (asked + tokens) + others + written, others)


def request_for(part: str, client: dict[str, Any], how: Summaries, tokens: int) -> dict[str, Any]:
    """What is asked of one part. client: the body of the client's request, whose model and user are kept."""
    asked: dict[str, Any] = {name: client[name] for name in ("model", "user") if name in client}
    if "prompt" in client:
        return {**asked, "prompt": f"{how.prompt}\n\n{part}\n\n", "max_tokens": tokens}
    limit = "max_completion_tokens" if "max_completion_tokens" in client else "max_tokens"
    said = [{"role": "system", "content": how.prompt}, {"role": "user", "content": part}]
    return {**asked, "messages": said, limit: tokens}


def text_in(answer: Any) -> str | None:
    """The summary that an answer holds, None if there is none in it."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return None
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    return text.strip() if isinstance(text, str) and text.strip() else None


def merged(made: Plan, summaries: Sequence[str], count: Count) -> Cut:
    """The client's messages or prompt with the summaries in place of the document. Longer ones than were asked for are
    cut, as another tokenizer than the model's may count more."""
    marked = []
    for at, text in enumerate(summaries, 1):
        short = text if count(text) <= made.tokens else shorten(text, made.tokens, "end", count)
        marked.append(f"[Summary of part {at} of {len(summaries)}]\n{short}")
    text = "\n\n".join(marked)
    return Cut(replaced(made.value, made.place, text), made.others + count(text))
