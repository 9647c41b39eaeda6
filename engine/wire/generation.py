"""The jobs of one request on the device, and where their events come: one job per choice, one mailbox for all.

Owns their common life on the event loop: they begin together, pause together while their reader is slow, and whatever
ends the request ends them all.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from functools import partial
from typing import Any

from engine.errors import RequestError, invalid
from engine.llm.chat import ChatModel
from engine.llm.prompts import Prompt
from engine.llm.recipe import Recipe
from engine.llm.sequence import Progress, Sequence
from engine.llm.standing import Standing
from engine.serving import Serving
from engine.wire import sse
from engine.wire.openai_answer import Usage

Event = tuple[int, Progress | RequestError]  # of the choice with this index


@contextlib.contextmanager
def places_for(serving: Serving, model: ChatModel, num_choices: int) -> Iterator[None]:
    """A place for each choice but the first, whose place the request has. Raises RequestError (400, 503)."""
    most = model.admission.running + model.admission.queue
    if num_choices > most:
        raise invalid(f"{num_choices} choices are more than the model's {most} places; ask for less", "n")
    with contextlib.ExitStack() as places:
        for _ in range(num_choices - 1):
            places.enter_context(serving.place(model))
        yield


class Generation:
    """``recipe.n`` choices for each prompt, those of one prompt side by side. may_park: the reader may be slow."""

    def __init__(
        self,
        serving: Serving,
        model: ChatModel,
        prompts: SequenceOf[Prompt],
        recipe: Recipe,
        standing: Standing,
        *,
        may_park: bool,
    ) -> None:
        self._serving = serving
        self._lane = model.lane
        self._num_each = recipe.n
        self._sequences: list[Sequence] = []
        mailbox = self._mailbox = sse.Mailbox(
            on_full=partial(_park, self._sequences if may_park else ()),
            on_emptied=partial(_resume, self._sequences, serving),
        )
        self._sequences += [
            model.sequence(prompt.tokens, recipe, number, partial(_put, mailbox, at * recipe.n + number), standing)
            for at, prompt in enumerate(prompts)
            for number in range(recipe.n)
        ]
        for sequence in self._sequences:
            serving.device.submit(self._lane, sequence)

    async def events(self, timeout_s: float) -> list[Event]:
        """What has come. Nothing in time: [] while the device is well, otherwise the error that ends this."""
        events: list[Event] = await self._mailbox.take(timeout_s)
        if not events and (error := self._serving.failure(time.monotonic())) is not None:
            return [(0, error)]
        return events

    @property
    def num_choices(self) -> int:
        return len(self._sequences)

    @property
    def usage(self) -> Usage:
        """So far; a prompt counts once, however many choices it has."""
        firsts = self._sequences[:: self._num_each]
        return Usage(
            num_prompt=sum(sequence.num_prompt_tokens for sequence in firsts),
            num_output=sum(sequence.num_output_tokens for sequence in self._sequences),
            num_cached=sum(sequence.num_reused or 0 for sequence in firsts),
        )

    def cancel(self) -> None:
        """Nobody wants more of it. Nothing can be asked of it afterwards: its mailbox leads to the sequences and they
        to the mailbox, and what such a ring holds would stay until the interpreter searches for rings."""
        for sequence in self._sequences:
            self._serving.device.cancel(self._lane, sequence)
        self._sequences.clear()


def _put(mailbox: sse.Mailbox, index: int, event: Any) -> None:
    mailbox.put((index, event))


def _park(sequences: SequenceOf[Sequence]) -> None:
    for sequence in sequences:
        sequence.parked_at = sequence.parked_at or time.monotonic()  # again for each event that is one more


def _resume(sequences: SequenceOf[Sequence], serving: Serving) -> None:
    for sequence in sequences:
        sequence.parked_at = None
    serving.device.wake()
