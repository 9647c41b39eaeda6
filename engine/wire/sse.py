"""Server-sent events: whole events as bytes, and a mailbox that bounds what a slow reader makes wait.

Every event is one ``data:`` line of JSON, so it holds no line end and needs no splitting (WHATWG HTML, 9.2.6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"  # a comment: keeps idle timers quiet and is no event

LEAST_WAITING, MOST_WAITING = 16, 128  # events for a slow reader; its sequences then pause
_SHRINKS_AFTER = 32

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # tells a proxy in front not to hold events back
}


def event(json: bytes) -> bytes:
    """One whole event with ``json`` as its data."""
    return b"data: " + json + b"\n\n"


class Window:
    """How many events may wait for one reader: more for one that comes late and takes all, fewer once it keeps up.

    A larger window means fewer pauses of its sequence and more memory; so only those have one that have shown a need.
    """

    def __init__(self) -> None:
        self.size = LEAST_WAITING
        self._num_small = 0  # takes running of less than a quarter of the window

    def taken(self, num_events: int) -> None:
        """The reader took all that waited."""
        if num_events >= self.size:
            self.size = min(MOST_WAITING, 2 * self.size)
        self._num_small = self._num_small + 1 if 4 * num_events < self.size else 0
        if self._num_small == _SHRINKS_AFTER:
            self.size, self._num_small = max(LEAST_WAITING, self.size // 2), 0


class Mailbox:
    """Events of one request on their way to its handler; all of them at once when the handler comes for them.

    on_full: called when as many wait as the window has; on_emptied: called when they have been taken.
    """

    def __init__(self, *, on_full: Callable[[], None], on_emptied: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: list[Any] = []
        self._waiter: asyncio.Future[None] | None = None
        self._window = Window()
        self._on_full = on_full
        self._on_emptied = on_emptied

    def put(self, event: Any) -> None:
        """Add an event. Called on the loop."""
        self._events.append(event)
        if len(self._events) == self._window.size:
            self._on_full()
        self._notify()

    async def take(self, timeout_s: float | None = None) -> list[Any]:
        """What has come, as soon as there is something; [] when nothing came in time."""
        if not self._events:
            self._waiter = self._loop.create_future()
            timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._notify)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        events, self._events = self._events, []
        was_full = len(events) >= self._window.size
        self._window.taken(len(events))
        if was_full:
            self._on_emptied()
        return events

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
