"""The variants of routes: shown and ordered, for the admin interface, by asking the workers, who share them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from appliance.control import Message
from appliance.first_answer import NoAnswer, first_answer

ORDERS = ("list", "set", "reset")


async def hear(asked: Sequence[asyncio.Future[Message]], route: str | None) -> dict[str, Any]:
    """What the admin interface answers, from the first worker's answer: ``ok``, ``problems``, ``variants`` by route."""
    try:
        answer = await first_answer(asked)
    except NoAnswer as error:
        return {"ok": False, "problems": [str(error)], "variants": {}}
    problem, found = answer["problem"], answer["variants"]
    if problem is None and route is not None and route not in found:
        problem = f"no route named {route!r} has variants; those that have: {', '.join(sorted(found)) or 'none'}"
    if problem is not None:
        return {"ok": False, "problems": [problem], "variants": {}}
    return {"ok": True, "problems": [], "variants": found if route is None else {route: found[route]}}
