"""Messages to prompt tokens by the model's own chat template, so that no user text can become a control token.

Owns the sandboxed jinja2 environment and the two ways of encoding. A template never sees what users wrote: it is
rendered with a placeholder for every text, the result is split at the placeholders, and only in the scaffolding between
them are control tokens looked for. What lies between two control tokens is encoded as one ordinary text, as the model
saw it in training: a text and the scaffolding beside it may share a token. Thread-safe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

#: Only letters, digits and dots, so that it survives ``tojson``; a template that spells one itself is refused.
_PLACEHOLDER = re.compile(r"headrace\.text\.(\d+)\.")


class BadTemplateError(ValueError):
    """The template cannot be used at all."""


class RefusedByTemplateError(ValueError):
    """The template does not take these messages."""


@dataclass(slots=True)
class _Texts:
    """The users' texts of one rendering, by number."""

    texts: list[str] = field(default_factory=list)

    def hide(self, value: Any) -> Any:
        """The same value with a placeholder for every string that is not empty, keys excepted."""
        if isinstance(value, str) and value:
            self.texts.append(value)
            return f"headrace.text.{len(self.texts) - 1}."
        if isinstance(value, Mapping):
            return {key: self.hide(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        return value

    def strip(self, value: str, chars: str | None) -> str:
        """``value.strip(chars)``, seeing through a placeholder."""
        found = _PLACEHOLDER.fullmatch(value)
        return value.strip(chars) if found is None else str(self.hide(self.texts[int(found[1])].strip(chars)))


class ChatTemplate:
    """One model's template.

    special: control tokens by text. encode_text: ordinary text to ids, never those of control tokens.
    bos, eos: what the template may write as ``bos_token`` and ``eos_token``.
    """

    def __init__(
        self, source: str, *, special: Mapping[str, int], encode_text: Callable[[str], list[int]], bos: str, eos: str
    ) -> None:
        if _PLACEHOLDER.search(source):
            raise BadTemplateError("the chat template spells a placeholder of this engine; change the template")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals.update(raise_exception=_raise_exception, bos_token=bos, eos_token=eos)
        environment.filters["trim"] = _trim
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise BadTemplateError(f"the chat template is not valid jinja2: {error}") from error
        self._special = dict(special)
        self._encode_text = encode_text
        by_length = sorted(filter(None, special), key=len, reverse=True)
        self._split_special = re.compile("(" + "|".join(map(re.escape, by_length)) + ")") if by_length else None

    def encode(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The prompt's tokens, ending where the assistant is to speak. messages: role and content, as validated.

        Raises RefusedByTemplateError, and what ``encode_text`` raises.
        """
        tokens: list[int] = []
        text = ""  # since the last control token
        for index, part in enumerate(self._render(messages)):
            pieces = [part] if index % 2 or self._split_special is None else self._split_special.split(part)
            for at, piece in enumerate(pieces):
                if at % 2 == 0:
                    text += piece
                    continue
                tokens += [*(self._encode_text(text) if text else ()), self._special[piece]]
                text = ""
        return tokens + (self._encode_text(text) if text else [])

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The same prompt as text, for people: it does not tell control tokens from text that spells them."""
        return "".join(self._render(messages))

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> list[str]:
        """Scaffolding and users' texts, in turn."""
        hidden = _Texts()
        safe = [{**hidden.hide(message), "role": message["role"]} for message in messages]
        try:
            rendered = self._template.render(messages=safe, add_generation_prompt=True, headrace_texts=hidden)
            parts = _PLACEHOLDER.split(rendered)  # scaffolding and numbers of texts, in turn
            parts[1::2] = [hidden.texts[int(number)] for number in parts[1::2]]
        except Exception as error:  # whatever a template does wrong, it does it to these messages alone
            raise RefusedByTemplateError(str(error) or type(error).__name__) from error
        return parts


@pass_context
def _trim(context: Context, value: Any, chars: str | None = None) -> str:
    """jinja's ``trim``: templates strip contents."""
    texts: _Texts = context["headrace_texts"]
    return texts.strip(str(value), chars)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
