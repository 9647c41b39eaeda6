"""The first answer of the workers that are asked the same: they share what they are asked about, so one is enough."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from appliance.control import Message

ANSWER_S = 5.0  # a worker that builds a configuration answers afterwards


class NoAnswer(Exception):
    """Nobody has answered: why, and what to look at."""


async def first_answer(asked: Sequence[asyncio.Future[Message]]) -> Message:
    """What the first worker says; the others are not waited for. Raises NoAnswer."""
    loop = asyncio.get_running_loop()
    waiting, until = set(asked), loop.time() + ANSWER_S
    try:
        while waiting and (left_s := until - loop.time()) > 0:
            done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                if not each.cancelled():  # else that worker is gone
                    return each.result()
    finally:
        for each in asked:
            each.cancel()
    why = f"no worker answered within {ANSWER_S:g} s" if waiting else "no worker serves"
    raise NoAnswer(f"{why}; see `headrace status`")
