"""The breakers of the box: shown and ordered, for the admin interface, by asking the workers.

An order goes to every worker that serves, under one number, because any of them may be about to end. They share each
breaker, so the first that obeys has obeyed for all, and one answer is enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from appliance.control import Message
from appliance.first_answer import NoAnswer, first_answer

ORDERS = ("list", "open", "close", "reset")


async def hear(asked: Sequence[asyncio.Future[Message]], upstream: str | None) -> dict[str, Any]:
    """What the admin interface answers, from the first worker's answer: ``ok``, ``problems``, ``breakers`` by name."""
    try:
        return _verdict((await first_answer(asked))["breakers"], upstream)
    except NoAnswer as error:
        return {"ok": False, "problems": [str(error)], "breakers": {}}


def _verdict(breakers: dict[str, Any], upstream: str | None) -> dict[str, Any]:
    if upstream is None:
        return {"ok": True, "problems": [], "breakers": breakers}
    if upstream not in breakers:
        known = ", ".join(sorted(breakers)) or "none"
        return {"ok": False, "problems": [f"there is no upstream named {upstream!r}; known: {known}"], "breakers": {}}
    return {"ok": True, "problems": [], "breakers": {upstream: breakers[upstream]}}
