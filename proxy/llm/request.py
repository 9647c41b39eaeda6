"""What a request asks of a language model, as far as policies need it: a view of its JSON. Pure.

It changes nothing and judges nothing, which is the upstream's business: what has a wrong type counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

LlmKind = Literal["chat", "completion", "embedding", "other"]

_KINDS: Final[dict[str, LlmKind]] = {
    "/chat/completions": "chat",
    "/completions": "completion",
    "/embeddings": "embedding",
}
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "refusal"})
#: Larger numbers are taken for this one.
_HUGEST: Final = (1 << 63) - 1


class LlmRequest:
    """kind: by the path; "other": it names a model. texts: what is read as prompt, roles not included.
    num_token_ids: of prompts that come as tokens. num_other_parts: pictures, sounds and files among the messages.
    max_tokens: max_completion_tokens wins; None: it says nothing. n: answers asked for, times prompts of a completion.
    """

    __slots__ = ("include_usage", "kind", "max_tokens", "messages", "model", "n", "num_other_parts", "num_token_ids",
                 "stream", "texts", "tools", "user")  # fmt: skip

    def __init__(
        self,
        kind: LlmKind,
        model: str,
        texts: tuple[str, ...],
        messages: tuple[dict[str, Any], ...],
        tools: Any,
        num_token_ids: int,
        num_other_parts: int,
        stream: bool,
        include_usage: bool,
        max_tokens: int | None,
        n: int,
        user: str | None,
    ) -> None:
        self.kind: LlmKind = kind
        self.model = model
        self.texts = texts
        self.messages = messages
        self.tools = tools
        self.num_token_ids = num_token_ids
        self.num_other_parts = num_other_parts
        self.stream = stream
        self.include_usage = include_usage
        self.max_tokens = max_tokens
        self.n = n
        self.user = user


def kind_of(path: str) -> LlmKind:
    """The kind of request that the path is for."""
    for end, kind in _KINDS.items():
        if path.endswith(end):
            return kind
    return "other"


def view_request(path: str, body: dict[str, Any] | list[Any] | None) -> LlmRequest | None:
    """The view of a body; None if it is no object, or neither the path nor a ``model`` says that it is for one."""
    kind = kind_of(path)
    if not isinstance(body, dict) or (kind == "other" and not isinstance(body.get("model"), str)):
        return None
    texts: list[str] = []
    messages: tuple[dict[str, Any], ...] = ()
    num_token_ids = num_other_parts = 0
    num_prompts = 1
    if kind == "chat":
        rows = body.get("messages")
        messages = tuple(row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()
        for message in messages:
            num_other_parts += _read_content(message, texts)
    else:
        prompt = body.get("prompt" if kind == "completion" else "input")
        num_token_ids, num_prompts = _read_prompt(prompt, texts)
    options = body.get("stream_options")
    max_tokens = _whole(body.get("max_completion_tokens"))
    if max_tokens is None:
        max_tokens = _whole(body.get("max_tokens"))
    n = _whole(body.get("n"))
    return LlmRequest(
        kind,
        _text(body.get("model")) or "",
        tuple(texts),
        messages,
        body.get("tools"),
        num_token_ids,
        num_other_parts,
        body.get("stream") is True,
        isinstance(options, dict) and options.get("include_usage") is True,
        max_tokens,
        max(1, n or 1) * (num_prompts if kind == "completion" else 1),
        _text(body.get("user")),
    )


def message_texts(message: dict[str, Any]) -> list[str]:
    """What is read of a message."""
    texts: list[str] = []
    _read_content(message, texts)
    return texts


def _read_content(message: dict[str, Any], texts: list[str]) -> int:
    """Add a message's texts; how many parts of it are none."""
    num_other_parts = 0
    for name in ("content", "name", "refusal"):
        content = message.get(name)
        if isinstance(content, str):
            texts.append(content)
        elif isinstance(content, list):
            for part in content:
                text = part.get("text", part.get("refusal")) if isinstance(part, dict) else part
                if isinstance(text, str) and (not isinstance(part, dict) or part.get("type", "text") in _TEXT_PARTS):
                    texts.append(text)
                else:
                    num_other_parts += 1
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            texts += [text for name in ("name", "arguments") if isinstance(text := function.get(name), str)]
    return num_other_parts


def _read_prompt(prompt: Any, texts: list[str]) -> tuple[int, int]:
    """Add the texts of a prompt: (token ids in it, prompts)."""
    if isinstance(prompt, str):
        texts.append(prompt)
        return 0, 1
    if not isinstance(prompt, list):
        return 0, 1
    texts += [each for each in prompt if isinstance(each, str)]
    num_token_ids = sum(1 for _ in _token_ids(prompt))
    alone = bool(prompt) and isinstance(prompt[0], int)
    return num_token_ids, 1 if alone else max(1, len(prompt))


def _token_ids(prompt: list[Any]) -> Iterator[int]:
    for each in prompt:
        if isinstance(each, int):
            yield each
        elif isinstance(each, list):
            yield from (token for token in each if isinstance(token, int))


def _whole(value: Any) -> int | None:
    """A number that is whole, however it is written: as JSON has them, 2.0 is one, and one beyond 64 bits, too."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0 or value % 1:
        return None
    return min(int(value), _HUGEST)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
