"""Which models stay in memory: what must go to make room for one, what has been idle for too long, and how the rest of
the budget is shared.

Pure. A model needs its weights and, to serve at all, the keys and values of one full context; what the budget has
beyond the needs of all that are loaded is shared equally among those that can use it. Models in use are never unloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """What a model takes at least, in bytes."""

    weights: int
    context: int = 0  # keys and values of one full context; 0: it keeps none

    @property
    def total(self) -> int:
        """Below this it cannot serve."""
        return self.weights + self.context


@dataclass(frozen=True, slots=True)
class Resident:
    """A model in memory."""

    number: int  # no other one has it
    need: Need
    num_users: int  # requests that hold it
    used_at: float  # when the last of them left, monotonic seconds
    idle_unload_s: float | None = None  # how long it may be idle; None: until others need its memory


def to_unload(need: Need, budget_bytes: int, residents: Sequence[Resident]) -> list[int] | None:
    """Who must go so that ``need`` fits into the budget: idle models, the least recently used first, and no more than
    it takes. None: too many of them are in use."""
    free_bytes = budget_bytes - sum(each.need.total for each in residents)
    chosen: list[int] = []
    for each in sorted((each for each in residents if not each.num_users), key=lambda each: each.used_at):
        if free_bytes >= need.total:
            break
        free_bytes += each.need.total
        chosen.append(each.number)
    return chosen if free_bytes >= need.total else None


def idle_too_long(now: float, residents: Sequence[Resident]) -> list[int]:
    """Those that nobody has used for their ``idle_unload_s``."""
    return [
        each.number
        for each in residents
        if each.idle_unload_s is not None and not each.num_users and now - each.used_at >= each.idle_unload_s
    ]


def allotments(budget_bytes: int, residents: Sequence[Resident]) -> dict[int, int]:
    """What each model may take for keys and values: one context, and an equal part of what is left of the budget."""
    spare_bytes = max(0, budget_bytes - sum(each.need.total for each in residents))
    num_shares = sum(each.need.context > 0 for each in residents)
    return {each.number: each.need.context + spare_bytes // num_shares for each in residents if each.need.context}
