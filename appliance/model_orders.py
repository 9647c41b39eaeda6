"""Orders about models (see what is served, load, unload, swap), passed on to the engine that serves.

An engine that is being loaded gets none: its configuration is not in force yet. Knows nothing of models.
"""

from __future__ import annotations

import asyncio
from typing import Any

from appliance.control import Message
from appliance.statistics import Statistics

ORDERS = ("list", "load", "unload", "swap")
ANSWER_S = 870.0  # a load reads a large model from a slow disk, and may wait for others


def engine_of(statistics: Statistics) -> int | None:
    """The number of the engine's process that takes orders; None: none serves."""
    posts = [post for post in statistics.posts if post.role == "engine" and post.generation == statistics.generation]
    return posts[0].child if posts and posts[0].serves else None


async def hear(asked: asyncio.Future[Message] | None, answer_s: float = ANSWER_S) -> dict[str, Any]:
    """What the admin interface answers: ``ok``, ``problems`` and ``models``. asked: None, nobody could be."""
    if asked is None:
        return _failed("no engine serves; see `headrace status`")
    try:
        await asyncio.wait({asked}, timeout=answer_s)
        if not asked.done():
            return _failed(f"the engine did not answer within {answer_s:g} s; see its log")
        if asked.cancelled():
            return _failed("the engine ended before it answered; see its log")
        message = asked.result()
        return {name: message[name] for name in ("ok", "problems", "models")}
    finally:
        asked.cancel()


def _failed(why: str) -> dict[str, Any]:
    return {"ok": False, "problems": [why], "models": []}
