"""The breakers of the box: shown and ordered, for the admin interface, by asking the workers.

An order goes to every worker that serves, under one number, because any of them may be about to end. They share each
breaker, so the first that obeys has obeyed for all, and one answer is enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from appliance.control import Message

ORDERS = ("list", "open", "close", "reset")
ANSWER_S = 5.0  # a worker that builds a configuration answers afterwards


async def hear(asked: Sequence[asyncio.Future[Message]], upstream: str | None) -> dict[str, Any]:
    """What the admin interface answers, from the first worker's answer: ``ok``, ``problems``, ``breakers`` by name."""
    loop = asyncio.get_running_loop()
    waiting, until = set(asked), loop.time() + ANSWER_S
    try:
        while waiting and (left_s := until - loop.time()) > 0:
            done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                if not each.cancelled():  # else that worker is gone
                    return _verdict(each.result()["breakers"], upstream)
    finally:
        for each in asked:
            each.cancel()
    why = f"no worker answered within {ANSWER_S:g} s" if waiting else "no worker serves"
    return {"ok": False, "problems": [f"{why}; see `headrace status`"], "breakers": {}}


def _verdict(breakers: dict[str, Any], upstream: str | None) -> dict[str, Any]:
    if upstream is None:
        return {"ok": True, "problems": [], "breakers": breakers}
    if upstream not in breakers:
        known = ", ".join(sorted(breakers)) or "none"
        return {"ok": False, "problems": [f"there is no upstream named {upstream!r}; known: {known}"], "breakers": {}}
    return {"ok": True, "problems": [], "breakers": {upstream: breakers[upstream]}}
