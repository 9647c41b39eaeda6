"""What has happened on the box of late, for those who ask and those who wait: numbered, bounded, as server-sent events.

Workers tell of what changed by itself and somebody may have to know of: a breaker's transition, a model that is served
by its lighter one, a variant that was stopped. The last ones are kept; who follows hears of the next as they come, and
who comes back says which one was the last that it has heard. No more may follow than MAX_FOLLOWERS.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import orjson

MAX_EVENTS: Final = 1000
MAX_FOLLOWERS: Final = 32
QUIET_S: Final = 15.0  # after which a follower gets a comment, so that one that has left is noticed


class EventRing:
    """The box's. Lives on the supervisor's loop."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=max_events)
        self._count = 0
        self._more = asyncio.Event()
        self.num_followers = 0

    def add(self, process: str, facts: Mapping[str, Any]) -> None:
        """Take what a process tells."""
        self._count += 1
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._events.append({"id": self._count, "at": at, "process": process, **facts})
        self._more.set()
        self._more = asyncio.Event()

    def after(self, number: int) -> list[dict[str, Any]]:
        """The events that came after the one of this number, as far as they are kept. A number that was not given yet
        is another run's: all."""
        return [event for event in self._events if event["id"] > (number if number <= self._count else 0)]

    async def follow(self, number: int, quiet_s: float = QUIET_S) -> AsyncGenerator[bytes, None]:
        """The events after this number, now and for ever, as server-sent events."""
        self.num_followers += 1
        try:
            while True:
                events, more = self.after(number), self._more
                for event in events:
                    number = event["id"]
                    yield b"id: %d\nevent: %b\ndata: %b\n\n" % (number, event["kind"].encode(), orjson.dumps(event))
                if events:
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(quiet_s):
                        await more.wait()
                        continue
                yield b": quiet\n\n"
        finally:
            self.num_followers -= 1
