"""From a prompt that is too long to one that fits: as the route is configured, off the loop, or not at all.

Nothing here decides whether a prompt is too long, or tells anybody what has gone: see ``proxy.policy.context_guard``.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, NamedTuple

from pydantic import Field, model_validator

from proxy.config import Table
from proxy.held_body import body_threads
from proxy.llm.count import count_texts
from proxy.llm.encodings import TextCounter
from proxy.llm.shorten import Part
from proxy.llm.summaries import Plan, Summaries, plan
from proxy.llm.truncate import Cut, last_window, truncated


class Truncate(Table):
    """The oldest turns of a conversation go."""

    inside: Part | None = "middle"  # what of a text that is too long by itself goes; None: nothing, it is refused


class Window(Table):
    """Of the longest text only the last window is seen, or summaries of all."""

    max_len: Annotated[int, Field(ge=16)]  # tokens of a window
    stride: Annotated[int, Field(ge=1)]  # tokens from the beginning of one window to that of the next
    summaries: Summaries | None = None  # of all windows, made by the model itself, instead of the last window

    @model_validator(mode="after")
    def _leaves_no_gaps(self) -> Window:
        if self.stride > self.max_len:
            raise ValueError("stride must not be more than max_len: what lies between two windows would never be seen")
        return self


class Asked(NamedTuple):
    """value: the messages or the prompt. others: tokens of the rest of the prompt. room: for all of it; context: for a
    prompt and its answer."""

    value: Any
    others: int
    room: int
    context: int


async def fit(asked: Asked, how: Truncate | Window, counter: TextCounter) -> Cut | Plan | None:
    """What is sent instead, with the tokens of all of it, or how to come to it; None: it cannot be made to fit."""
    return await asyncio.get_running_loop().run_in_executor(body_threads(), _fit, asked, how, counter)


def _fit(asked: Asked, how: Truncate | Window, counter: TextCounter) -> Cut | Plan | None:
    value, others, room, context = asked
    room -= others

    def count(text: str) -> int:
        return count_texts((text,), counter)

    if isinstance(how, Window) and how.summaries is not None:
        made = plan(value, room, context, how.max_len, how.stride, how.summaries, count)
        return None if made is None else made._replace(cost=made.cost + others)
    if isinstance(how, Window):
        cut = last_window(value, room, how.max_len, how.stride, count)
    else:
        cut = truncated(value, room, how.inside, count)
    return None if cut is None else Cut(cut.value, cut.tokens + others)
