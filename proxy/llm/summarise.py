"""The part of the context guard that has a long document summarised: behind all others, as it spends tokens.

Not among ``policies:``: ``context_guard.window.summaries`` asks for it. The requests are bounded in number, in length
and in how many there are at once, and end with the client's; what one of them is refused, the client is refused. What
they have used is told to whoever counts (``USED``), and to the client in ``usage``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

import orjson

from proxy.cells import Cells
from proxy.chain import Policy
from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Reply
from proxy.held_body import body_threads
from proxy.llm.context import SENT, USED
from proxy.llm.count import PromptTokens, count_texts
from proxy.llm.shorter import NAME as SHORTER
from proxy.llm.shorter import Shorter
from proxy.llm.summaries import Plan, Summaries, merged, request_for, text_in
from proxy.llm.usage import Usage, usage_in
from proxy.llm.usage_filter import BYTES_PER_TOKEN

_NO_SUMMARY: Final = "The upstream's answer to a request for a summary has no text. Send a shorter document."


class _Refused(Exception):
    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply = reply


class Summarise(Policy):
    def __init__(self, how: Summaries, cells: Cells, route: str) -> None:
        self._how = how
        self._requests = cells.counter(
            "llm_context_summaries_total", "Requests for summaries of parts of long documents.", {"route": route}
        )

    def gathers_late(self) -> bool:
        return True

    def gather(self, x: Exchange) -> Awaitable[None] | None:
        shorter: Shorter | None = x.scratch.get(SHORTER)
        return None if shorter is None or shorter.plan is None else self._summarise(x, shorter, shorter.plan)

    async def _summarise(self, x: Exchange, shorter: Shorter, plan: Plan) -> None:
        found: list[str] = [""] * len(plan.parts)
        waiting = iter(range(len(plan.parts)))

        async def ask_on() -> None:
            for at in waiting:  # all take from the same
                found[at] = await self._ask(x, plan.parts[at], plan.tokens)

        tasks = [asyncio.ensure_future(ask_on()) for _ in range(min(self._how.at_once, len(plan.parts)))]
        try:
            await asyncio.gather(*tasks)
        except _Refused as refused:
            shorter.reply = refused.reply
            return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        counter = shorter.counter
        shorter.cut = await asyncio.get_running_loop().run_in_executor(
            body_threads(), merged, plan, found, lambda text: count_texts((text,), counter)
        )

    async def _ask(self, x: Exchange, part: str, tokens: int) -> str:
        """The summary of one part. Raises _Refused."""
        assert x.body is not None
        assert x.ask is not None
        assert isinstance(x.body.json, dict)
        self._requests.add()
        document = request_for(part, x.body.json, self._how, tokens)
        # Whoever leaves has used what the upstream was given to read, as with a request of its own.
        answer = await x.ask(orjson.dumps(document), document, lambda: _use(x, Usage(_estimated(part), 0)))
        if answer.reply is not None:
            raise _Refused(answer.reply)
        value = _parsed(answer.body)
        text = text_in(value)
        _use(x, usage_in(value) or Usage(_estimated(part), _estimated(text or "")))
        if text is None:
            raise _Refused(refuse(x, Kind.UPSTREAM_PROTOCOL, _NO_SUMMARY))
        return text

    def admit(self, x: Exchange, now: float) -> Reply | None:
        shorter: Shorter | None = x.scratch.pop(SHORTER, None)
        if shorter is None or shorter.plan is None:
            return None
        if shorter.cut is None:
            return shorter.reply
        shorter.send(x, shorter.cut, len(shorter.plan.parts))
        x.scratch[SENT] = PromptTokens(shorter.cut.tokens, False)
        shorter.notes.usage = x.scratch.get(USED) or (0, 0, 0)
        return None


def _use(x: Exchange, usage: Usage) -> None:
    """Note what a request of ours has used."""
    prompt, completion, cached = x.scratch.get(USED) or (0, 0, 0)
    x.scratch[USED] = (
        prompt + usage.prompt_tokens,
        completion + usage.completion_tokens,
        cached + usage.cached_tokens,
    )


def _estimated(text: str) -> int:
    """Tokens of a text, where the upstream has not told."""
    return -(-len(text) // BYTES_PER_TOKEN)


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
