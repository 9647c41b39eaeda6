"""A prompt that the context guard has made shorter: what is sent instead, and how its answer says so.

One object of a request: the guard finds it, sends it and tells of it; where it takes summaries, the last part of the
chain makes them (``proxy.llm.summarise``).
"""

from __future__ import annotations

from typing import Final

import orjson

from proxy.answer_filter import add_filter
from proxy.exchange import Exchange, Head, Reply
from proxy.llm.context import SENT
from proxy.llm.count import CounterOf, PromptTokens, count_prompt, count_tools
from proxy.llm.encodings import TextCounter
from proxy.llm.fitting import Asked, Truncate, Window, fit
from proxy.llm.notes import NotesFilter, add_headers
from proxy.llm.splice import with_member
from proxy.llm.summaries import Plan
from proxy.llm.truncate import Cut

NAME: Final = "shorter_prompt"


class Shorter:
    """before: tokens of the client's prompt. cut: what is sent instead, or plan: how to come to it; reply: why that
    came to nothing."""

    __slots__ = ("before", "counter", "cut", "field", "notes", "plan", "reply")

    def __init__(self, field: str, before: int, counter: TextCounter, found: Cut | Plan) -> None:
        self.field = field
        self.before = before
        self.counter = counter
        self.cut = found if isinstance(found, Cut) else None
        self.plan = found if isinstance(found, Plan) else None
        self.reply: Reply | None = None
        self.notes = NotesFilter({})

    @property
    def tokens(self) -> int:
        """Of all prompts that are sent, and of the answers that become part of one."""
        return self.cut.tokens if self.cut is not None else self.plan.cost if self.plan is not None else self.before

    def begin(self, x: Exchange) -> None:
        """Have the answer tell, for which it must come in the clear; and send what is there."""
        x.drop.add(b"accept-encoding")
        add_filter(x, self.notes)
        if self.cut is not None:
            self.send(x, self.cut)

    def send(self, x: Exchange, cut: Cut, num_summaries: int = 0) -> None:
        """Send this instead of the client's prompt."""
        body = x.body
        assert body is not None
        assert body.data is not None
        body.replace(with_member(body.data, self.field, orjson.dumps(cut.value)))
        notes = {"truncated_tokens": max(1, self.before - cut.tokens)}
        self.notes.notes = {**notes, "summaries": num_summaries} if num_summaries else notes

    def tell(self, head: Head) -> None:
        """Say in the head what was done."""
        add_headers(head, self.notes.notes)


async def find_shorter(
    x: Exchange, field: str, context: int, answer: int, margin: float, how: Truncate | Window, counter_of: CounterOf
) -> Shorter | None:  # fmt: skip
    """A shorter prompt that leaves room for an answer of so many tokens; None: there is none. margin: what is added to
    tokens that another tokenizer than the model's own has counted, as a share."""
    assert x.body is not None
    assert isinstance(x.body.json, dict)
    llm = x.body.llm
    assert llm is not None
    counted = await count_prompt(x, counter_of)
    counter = counter_of(x.scratch.get("model") or llm.model)
    share = 1.0 + (0.0 if counted.exact else margin)
    tools = await count_tools(llm, counter)
    asked = Asked(x.body.json.get(field), tools, int((context - answer) / share), int(context / share))
    found = await fit(asked, how, counter)
    if found is None:
        return None
    shorter = Shorter(field, counted.tokens, counter, found)
    x.scratch[SENT] = PromptTokens(shorter.tokens, counted.exact)
    return shorter
