"""What a request says as the tokens that a chat model reads, and what is refused or cut when they do not fit.

Messages go through the model's template, text is taken as it stands, ids as they are. A prompt that leaves no room for
the answer is refused, or, if the request allows it, loses its oldest part: whole turns of a conversation, never system
messages at its head; tokens of a text. Whoever cuts says how many tokens that were. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

from engine.errors import Kind, RequestError, invalid
from engine.llm.template import ChatTemplate, RefusedByTemplateError
from engine.llm.vocabulary import TextTooLong

_ENCODED_IN_PLACE_BYTES = 4096  # longer text is encoded in a thread
Messages = Sequence[Mapping[str, Any]]


class Prompt(NamedTuple):
    """Tokens, and how many more there were before it was cut."""

    tokens: list[int]
    num_cut: int = 0


class EncodesText(Protocol):
    """See ``engine.llm.vocabulary.Vocabulary``."""

    count: int
    longest_token_bytes: int

    def encode_text(self, text: str, *, max_tokens: int) -> list[int]: ...


class Prompts:
    """One model's. bos_id: the token that the model wants at the very beginning, None if it wants none."""

    def __init__(self, vocabulary: EncodesText, template: ChatTemplate, *, context: int, bos_id: int | None) -> None:
        self._vocabulary = vocabulary
        self._template = template
        self._context = context
        self._bos = [] if bos_id is None else [bos_id]

    async def of_messages(self, messages: Messages, *, room: int = 1, cut: bool = False) -> Prompt:
        """The prompt that ends where the assistant is to speak. Raises RequestError (400, 422).

        room: tokens that the answer is to have; 0: there is to be none, so that the prompt may be of any length. cut:
        leave out the oldest turns rather than leave the answer less.
        """
        if room and len(messages) >= self._context:
            raise self._too_long(f"{len(messages)} messages cannot fit", "messages")
        make = partial(self._cut_messages if cut else self._whole_messages, messages)
        return await self._encode(make, sum(map(_count_bytes, messages)), room, "messages")

    async def of_text(self, text: str, where: str, *, room: int = 1, cut: bool = False) -> Prompt:
        """The text alone, which stands in the field ``where``; see ``of_messages``."""

        def make(most: int) -> Prompt:
            tokens = self._begin(self._vocabulary.encode_text(text, max_tokens=self._context))
            return self._cut_tokens(tokens, most) if cut else Prompt(tokens)

        return await self._encode(make, len(text.encode()), room, where)

    def of_tokens(self, tokens: list[int], where: str, *, room: int = 1, cut: bool = False) -> Prompt:
        """The tokens as they are; see ``of_messages``."""
        self.check_ids(tokens, where)
        return self._fitting(self._cut_tokens(tokens, self._most(room)) if cut else Prompt(tokens), room, where)

    def check_ids(self, ids: Sequence[int], where: str) -> None:
        """Raises RequestError (400) when one of them is no token of this model."""
        if ids and not 0 <= min(ids) <= max(ids) < self._vocabulary.count:
            known = f"0 to {self._vocabulary.count - 1}"
            raise invalid(f"{where} names a token that this model does not have; it has {known}", where)

    def render(self, messages: Messages) -> str:
        """What the template makes of the messages, as text. Raises RequestError (400)."""
        try:
            return self._template.render(messages)
        except RefusedByTemplateError as error:
            raise _refused(error) from None

    async def _encode(self, make: Callable[[int], Prompt], num_bytes: int, room: int, where: str) -> Prompt:
        if num_bytes > self._context * self._vocabulary.longest_token_bytes:
            raise self._too_long(f"{num_bytes} bytes of text cannot fit", where)
        most = self._most(room)
        try:
            if num_bytes <= _ENCODED_IN_PLACE_BYTES:
                return self._fitting(make(most), room, where)
            return self._fitting(await asyncio.to_thread(make, most), room, where)
        except TextTooLong:
            raise self._too_long(f"{num_bytes} bytes of text do not fit", where) from None
        except RefusedByTemplateError as error:
            raise _refused(error) from None
        except ValueError as error:
            raise invalid(str(error), where) from None

    def _whole_messages(self, messages: Messages, most: int) -> Prompt:
        return Prompt(self._begin(self._template.encode(messages)))

    def _cut_messages(self, messages: Messages, most: int) -> Prompt:
        """Without as many of the oldest turns as must go: what is left begins with a user's."""
        whole, _ = self._whole_messages(messages, most)
        num_kept = len(list(takewhile(lambda message: message["role"] == "system", messages)))
        begins = [at for at, message in enumerate(messages) if message["role"] == "user" and at > num_kept]

        def without(begin: int) -> list[int]:
            return self._whole_messages([*messages[:num_kept], *messages[begin:]], most).tokens

        if len(whole) <= most or not begins:
            return Prompt(whole)
        at = bisect_left(begins, True, key=lambda begin: len(without(begin)) <= most)
        left = without(begins[min(at, len(begins) - 1)])
        return Prompt(left, len(whole) - len(left))

    def _cut_tokens(self, tokens: list[int], most: int) -> Prompt:
        if len(tokens) <= most:
            return Prompt(tokens)
        kept = self._bos if tokens[:1] == self._bos else []
        left = kept + tokens[len(tokens) - (most - len(kept)) :]
        return Prompt(left, len(tokens) - len(left))

    def _begin(self, tokens: list[int]) -> list[int]:
        return tokens if tokens[:1] == self._bos else self._bos + tokens

    def _most(self, room: int) -> int:
        """Tokens of a prompt that leaves the room."""
        return self._context - min(max(room, 1), self._context - 1)

    def _fitting(self, prompt: Prompt, room: int, where: str) -> Prompt:
        if room and len(prompt.tokens) >= self._context:
            raise self._too_long(f"{where} takes {len(prompt.tokens)} and the answer needs at least 1", where)
        return prompt

    def _too_long(self, what: str, where: str) -> RequestError:
        message = f"this model's context is {self._context} tokens; {what}; shorten it"
        return RequestError(Kind.CONTEXT_LENGTH, message, param=where)


def _refused(error: RefusedByTemplateError) -> RequestError:
    return invalid(f"the model's chat template refuses these messages: {error}", "messages")


def _count_bytes(value: Any) -> int:
    """UTF-8 bytes of all strings in a message."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, Mapping):
        return sum(map(_count_bytes, value.values()))
    return sum(map(_count_bytes, value)) if isinstance(value, list) else 0
