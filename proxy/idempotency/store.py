"""Where kept answers are: one small interface, and the memory that all workers share. Pure.

Times are of the wall clock, for what outlives the box's uptime. A store is bounded in bytes and in answers; when it is
full, the oldest answers make room before their time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from proxy.shared.answers import SharedAnswers


class StoreError(Exception):
    """The store cannot be read now."""


class AnswerStore(Protocol):
    """Bytes by place (32 bytes). Whoever puts has the claim of that place and lets it go when ``done`` is called."""

    def get(self, place: bytes, now: float) -> bytes | Awaitable[bytes | None] | None:
        """What is kept there and has not expired, at once or to be awaited, which raises StoreError."""

    def put(self, place: bytes, answer: bytes, expires_at: float, now: float, done: Callable[[], None]) -> None:
        """Keep it if that can be, and call ``done`` on the event loop, whatever came of it."""


class MemoryStore:
    """The shared mapping: gone when headrace stops, whole after the death of any worker. dropped: told how many answers
    made room before their time, and how many were too large for it."""

    __slots__ = ("_answers", "_dropped")

    def __init__(self, answers: SharedAnswers, dropped: Callable[[int], None]) -> None:
        self._answers = answers
        self._dropped = dropped

    def get(self, place: bytes, now: float) -> bytes | None:
        return self._answers.get(place, now)

    def put(self, place: bytes, answer: bytes, expires_at: float, now: float, done: Callable[[], None]) -> None:
        try:
            if num_dropped := self._answers.put(place, answer, expires_at, now):
                self._dropped(num_dropped)
        finally:
            done()
