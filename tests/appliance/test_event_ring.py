"""Events of the box: numbered, bounded, and followed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from appliance.event_ring import EventRing


def facts(text: str) -> dict[str, Any]:
    return {"kind": "breaker", "text": text}


def texts(events: list[dict[str, Any]]) -> list[str]:
    return [event["text"] for event in events]


def test_the_last_events_are_kept_and_told_by_their_numbers() -> None:
    ring = EventRing(max_events=3)
    for number in range(1, 6):
        ring.add("proxy-1", facts(f"{number}"))
    assert texts(ring.after(0)) == ["3", "4", "5"]
    assert texts(ring.after(4)) == ["5"]
    assert ring.after(5) == []
    assert texts(ring.after(99)) == ["3", "4", "5"]  # of another run
    event = ring.after(4)[0]
    assert (event["id"], event["process"], event["kind"]) == (5, "proxy-1", "breaker")


async def test_who_follows_hears_what_was_and_what_comes_and_that_nothing_does() -> None:
    ring = EventRing()
    ring.add("proxy-1", facts("was"))
    async with aclosing(ring.follow(0, quiet_s=0.01)) as events:
        first = await anext(events)
        assert first.startswith(b"id: 1\nevent: breaker\ndata: {")
        assert first.endswith(b"\n\n")
        assert await anext(events) == b": quiet\n\n"
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        ring.add("proxy-2", facts("comes"))
        told = await waiting
        while told == b": quiet\n\n":
            told = await anext(events)
        assert b'"text":"comes"' in told
        assert ring.num_followers == 1
    assert ring.num_followers == 0
