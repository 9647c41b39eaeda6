"""Budgets from the configuration, and what had been used of them before they were there.

A budget whose memory is new begins with what the record of usage tells. Whoever builds a snapshot with it looks that
up, off the event loop; the first one stores it. Nobody decides by the budget before all workers have built theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from proxy.budget_level import BudgetLevel, holder
from proxy.budget_windows import PERIOD_S, zone_of
from proxy.cells import Cells
from proxy.config_budgets import Budget
from proxy.shared.budget import NUM_BUCKETS
from proxy.shared.table import SharedTable
from proxy.usage_store import UsageStore, Used

#: When something was last used, and how much until then.
Counts = dict[str, list[tuple[float, int]]]
_UNITS: Final = ("requests", "tokens")
_ALL_S: Final = 1e12  # everything is within one such stretch


def build_levels(
    budgets: Mapping[str, Budget], shared: SharedTable, cells: Cells, draw_hex: Callable[[int], str]
) -> tuple[BudgetLevel, ...]:
    """The budgets of one snapshot. Raises ValueError if the common table has no room for them."""
    levels = []
    for name, table in budgets.items():
        rolls = table.window == "rolling"
        for unit in _UNITS:
            amount = table.requests if unit == "requests" else table.tokens
            if amount is None:
                continue
            # What is counted otherwise is counted anew.
            place = f"{name} {unit} {table.key} {table.window} {table.per} {table.time_zone}"
            memory = shared.budget(place, PERIOD_S[table.per] if rolls else 0.0)
            begun = shared.record(f"budget {place}", 1)
            doc = "Requests refused because a budget was used up."
            refused = cells.counter("headrace_budget_refused_total", doc, {"budget": name, "unit": unit})
            zone = None if rolls else zone_of(table.time_zone)
            ietf = "ietf" in table.headers
            levels.append(
                BudgetLevel(
                    name, unit, table.key, amount, table.per, zone, place, memory, begun, refused, draw_hex, ietf
                )
            )
    return tuple(levels)


async def begin(levels: Iterable[BudgetLevel], path: str, wall: float) -> None:
    """Have budgets that are new begin with what the record at ``path`` tells. Raises StoreError."""
    new = {level: _span(level, wall) for level in levels if not level.begun.load()[0]}
    if new:
        rows = await asyncio.to_thread(_read, path, set(new.values()))
        for level, span in new.items():
            fill(level, counts_of(level, rows[span], wall), wall)


class Span(NamedTuple):
    """What is asked of the record: from when on, and what is told apart."""

    since: float
    apart_s: float


def _span(level: BudgetLevel, wall: float) -> Span:
    if level.rolls:
        return Span(wall - level.period_s, level.period_s / NUM_BUCKETS)
    return Span(level.window(wall).start, _ALL_S)


def counts_of(level: BudgetLevel, rows: Iterable[Used], wall: float) -> Counts:
    """What each holder of a budget has used of it; the rows are in the order of their times."""
    counts: Counts = {}
    for row in rows:
        key = holder(level.kind, row.key, row.tenant, row.team)
        amount = row.tokens if level.unit == "tokens" else row.requests
        counts.setdefault(key, []).append((min(row.last_at, wall), amount))
    return counts


def fill(level: BudgetLevel, counts: Counts, wall: float) -> None:
    """Store what was used, unless somebody has. Killed in the middle, it is done again from the begin."""
    if level.begun.begin()[0]:
        level.begun.cancel()
        return
    try:
        start = level.window(wall).start
        level.memory.enter_all()
        try:
            for key, used in counts.items():
                level.memory.replace(key, used, wall, start)
        finally:
            level.memory.leave_all()
    except BaseException:
        level.begun.cancel()
        raise
    level.begun.commit([1.0])


def forget(levels: Iterable[BudgetLevel], kept: Iterable[BudgetLevel]) -> None:
    """Nobody counts by these any more, unless they are kept: should they come back, they are to begin anew."""
    places = {level.place for level in kept}
    for level in levels:
        if level.place not in places:
            level.begun.begin()
            level.begun.commit([0.0])


def _read(path: str, spans: Iterable[Span]) -> dict[Span, list[Used]]:
    store = UsageStore(path)
    try:
        return {span: store.used_since(*span) for span in spans}
    finally:
        store.close()
