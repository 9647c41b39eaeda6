"""One request's text while it is made: its tokens, how far the model has read them, and what ends it.

Pure state. A sequence waits without a slot; with one, its unread tokens are its prompt (prefill) or the one token that
was chosen last (decode). So what is to be done next is never stored, only counted:

    waiting   slot is None; it may have begun before and come back, with all its tokens
    prefill   slot, len(tokens) - num_cached tokens are to be read, in chunks, before one can be chosen
    decode    slot, some token chosen: exactly one is to be read
    ended     no slot any more, finish_reason or an error was delivered
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.job import Job
from engine.llm.detokenize import TextStream
from engine.llm.lookup import Lookup
from engine.llm.sampler import Sampler
from engine.llm.sampling import Choice


class Progress(NamedTuple):
    """What a step has to say of a sequence: text that may be shown, and, with the last of it, why it ended."""

    text: str
    finish_reason: str | None = None  # "stop" or "length"
    logprobs: tuple[Choice, ...] = ()  # of the tokens whose text this is, if they were asked for


@dataclass(eq=False, kw_only=True)
class Sequence(Job):
    """A prompt and its answer. Events delivered: Progress, or a RequestError as the last."""

    tokens: list[int]  # the prompt, then what was chosen
    max_tokens: int  # of the answer; prompt and answer fit the context
    sampler: Sampler
    text: TextStream
    end_ids: Set[int]  # tokens that end an answer and are not part of it
    min_tokens: int = 0  # of the answer; before it no stop string ends it
    key: str = ""  # whose share of the device it uses: the API key's id; "" for all that have none
    priority: int = 1  # 0 high, 1 normal, 2 low; of one key's sequences the most urgent comes first
    deadline_at: float | None = None  # monotonic seconds; an answer that is not whole by then is of no use
    parked_at: float | None = None  # set by the loop: since then its reader is slow, so produce nothing for now
    slot: int | None = None
    num_cached: int = 0  # tokens whose keys and values are in the slot
    num_reused: int | None = field(init=False, default=None)  # of its prompt: never read, since a slot held them
    due_at: float = field(init=False, default=0.0)  # monotonic seconds: its place in line, see engine.llm.waiting
    num_prepaid: int | None = field(init=False, default=None)  # tokens of its answer that its key was charged for
    lookup: Lookup | None = field(init=False, default=None)  # from its first step that a draft was thought of
    num_prompt_tokens: int = field(init=False)
    _num_shown: int = field(init=False, default=0)  # characters
    _unsaid: list[tuple[int, Choice]] = field(init=False, default_factory=list)  # with the characters before each

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)

    @property
    def parked(self) -> bool:
        """Its reader is slow: it keeps what it has and gets nothing more."""
        return self.parked_at is not None

    @property
    def most_tokens(self) -> int:
        """What it may come to hold."""
        return self.num_prompt_tokens + self.max_tokens

    @property
    def num_output_tokens(self) -> int:
        """Tokens chosen so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def decoding(self) -> bool:
        """It has begun to answer, and all but the token chosen last is in its slot: a reader waits for the next."""
        return len(self.tokens) - 1 == self.num_cached >= self.num_prompt_tokens

    @property
    def num_unread(self) -> int:
        """Tokens that the model must still read before it can choose the next."""
        return len(self.tokens) - self.num_cached

    def take(self, choice: Choice, token_bytes: bytes) -> Progress | None:
        """Add a chosen token. None: there is nothing to say yet."""
        self.tokens.append(choice.token)
        if choice.token in self.end_ids:
            return self._say(self.text.finish(), "stop")
        if choice.logprob is not None:
            self._unsaid.append((self.text.num_characters, choice))
        shown = self.text.push(token_bytes, may_stop=self.num_output_tokens >= self.min_tokens)
        if self.text.stopped:
            return self._say(shown, "stop")
        if self.num_output_tokens >= self.max_tokens:
            return self._say(shown + self.text.finish(), "length")
        return self._say(shown) if shown else None

    def _say(self, text: str, finish_reason: str | None = None) -> Progress:
        """With the text go the choices of all tokens that it holds something of; with its end those that left none."""
        self._num_shown += len(text)
        if not self._unsaid:
            return Progress(text, finish_reason)
        whole = finish_reason is not None and not self.text.stopped  # not after a stop string: it is not part of it
        said = [choice for begin, choice in self._unsaid if whole or begin < self._num_shown]
        del self._unsaid[: len(said)]
        return Progress(text, finish_reason, tuple(said))
