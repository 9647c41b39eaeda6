"""Whose a request is, how urgent, and until when its answer is of use. Plain data, pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """Holds for each of a request's sequences; the fields mean what they mean there."""

    key: str = ""
    priority: int = 1
    deadline_at: float | None = None


NOBODY = Standing()
