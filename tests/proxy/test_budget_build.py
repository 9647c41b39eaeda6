"""Budgets that are new begin with what the record of usage tells, once, whoever dies meanwhile."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from proxy.budget_build import begin, build_levels, counts_of, fill, forget
from proxy.budget_level import BudgetLevel
from proxy.budgets import Budgets
from proxy.cells import Cells
from proxy.config_budgets import Budget
from proxy.exchange import Exchange
from proxy.keys import KeyEntry
from proxy.shared.table import SharedTable
from proxy.usage_store import SLOT_S, Place, StoreError, Sums, UsageStore, Used
from tests.proxy.make import exchange

T0 = datetime.fromisoformat("2026-11-30T12:00:00+00:00").timestamp()
HOUR = 3600.0


def levels(shared: SharedTable, **tables: dict[str, Any]) -> tuple[BudgetLevel, ...]:
    configured = {name: Budget.model_validate_json(json.dumps(table)) for name, table in tables.items()}
    return build_levels(configured, shared, Cells(), lambda size: "00" * size)


def used(wall: float, tokens: int, key: str = "a", tenant: str = "acme", team: str = "x") -> tuple[Place, Sums]:
    slot = int(wall // SLOT_S) * SLOT_S
    return Place(slot, key, tenant, team, "m", "up", "r", 200), Sums(1, tokens, 0, 0, 0, wall)


def stored(file: Path, *rows: tuple[Place, Sums]) -> str:
    with closing(UsageStore(str(file))) as store:
        for place, sums in rows:
            store.add({place: sums})
    return str(file)


def of(key: str = "a", tenant: str = "acme", team: str = "x") -> Exchange:
    return exchange(key_id=key, key=KeyEntry(key, "", "", None, tenant, team))


def left(budgets: tuple[BudgetLevel, ...], x: Exchange, wall: float = T0) -> int:
    """The most that one request may take."""
    most = 0
    for tokens in range(1, 202):
        made = Budgets(budgets)
        if made.admit(x, tokens, 0.0, wall) is not None:
            break
        made.settle(x, 0, 0.0)
        most = tokens
    return most


async def test_a_calendars_budget_begins_with_what_its_window_has_seen(tmp_path: Path) -> None:
    path = stored(
        tmp_path / "usage.db",
        used(T0 - 13 * HOUR, 500),  # the day before
        used(T0 - 12 * HOUR, 10),
        used(T0 - 1, 20, key="b"),
        used(T0 - 1, 40, key="c", team="y"),
        used(T0 - 1, 80, key="d", tenant="beta"),
    )
    day = {"tokens": 200, "per": "day"}
    for kind, seen in {"api_key": 10, "team": 30, "tenant": 70, "all": 150}.items():
        made = levels(SharedTable.alone(), b={"key": kind, **day})
        await begin(made, path, T0)
        assert left(made, of()) == 200 - seen
    berlin = levels(SharedTable.alone(), b={**day, "time_zone": "Europe/Berlin", "requests": 2})
    await begin(berlin, path, T0 + 11 * HOUR)  # midnight in Berlin
    assert left(berlin, of(), T0 + 11 * HOUR) == 200


async def test_a_rolling_budget_begins_with_what_still_counts(tmp_path: Path) -> None:
    path = stored(tmp_path / "usage.db", used(T0 - 1.01 * HOUR, 100), used(T0 - 0.5 * HOUR, 30), used(T0 - 60, 50))
    made = levels(SharedTable.alone(), b={"tokens": 200, "per": "hour", "window": "rolling"})
    await begin(made, path, T0)
    assert left(made, of()) == 120
    assert left(made, of(), T0 + 0.6 * HOUR) == 150
    assert left(made, of(), T0 + 1.1 * HOUR) == 200


async def test_a_budget_begins_once_and_workers_that_come_later_find_it(tmp_path: Path) -> None:
    shared, table = SharedTable.alone(), {"b": {"tokens": 200}}
    path = stored(tmp_path / "usage.db", used(T0 - 1, 50))
    first, second = levels(shared, **table), levels(shared, **table)
    await begin(first, path, T0)
    x = of()
    assert Budgets(first).admit(x, 50, 0.0, T0) is None
    await begin(second, path, T0)
    await begin(levels(shared, **table), str(tmp_path / "nowhere" / "usage.db"), T0)  # there is nothing to look up
    assert left(second, of()) == 100


def test_whoever_was_killed_in_the_middle_leaves_it_to_be_begun_again() -> None:
    shared = SharedTable.alone()
    (level,) = levels(shared, b={"tokens": 200})
    rows = [Used("a", "", "", 1, 50, T0 - 800), Used("b", "", "", 1, 60, T0 - 800)]

    class Killed(BaseException):
        pass

    def some() -> Any:
        yield T0 - 800, 50
        raise Killed

    with pytest.raises(Killed):
        fill(level, {"a": some()}, T0)
    fill(level, counts_of(level, rows, T0), T0)
    fill(level, {"a": [(T0, 150)]}, T0)  # too late
    assert left((level,), of("a", "", "")) == 150
    assert left((level,), of("b", "", "")) == 140


async def test_a_budget_that_went_and_comes_back_begins_anew(tmp_path: Path) -> None:
    shared = SharedTable.alone()
    kept, gone = {"tokens": 200}, {"tokens": 200, "per": "day"}
    path = stored(tmp_path / "usage.db", used(T0 - 1, 50))
    both = levels(shared, kept=kept, gone=gone)
    await begin(both, path, T0)
    after = levels(shared, kept={"tokens": 190})
    forget(both, after)
    stored(tmp_path / "usage.db", used(T0 + 1, 100))
    await begin(after, path, T0 + 2)
    assert left(after, of()) == 140  # nobody asked the record again
    again = levels(shared, kept=kept, gone=gone)
    await begin(again, path, T0 + 2)
    assert left(again[1:], of(), T0 + 2) == 50


@pytest.mark.parametrize("window", ["calendar", "rolling"])
async def test_what_was_taken_before_a_budget_went_is_not_given_back_when_it_is_there_again(
    tmp_path: Path, window: str
) -> None:
    shared, table = SharedTable.alone(), {"b": {"tokens": 200, "per": "day", "window": window}}
    path = stored(tmp_path / "usage.db", used(T0, 50))
    before = levels(shared, **table)
    await begin(before, path, T0)
    x, made = of(), Budgets(before)
    assert made.admit(x, 150, 0.0, T0) is None
    forget(before, ())
    again = levels(shared, **table)
    await begin(again, path, T0 + 1)
    made.settle(x, 10, 2.0)
    assert left(again, of(), T0 + 2) == 140


async def test_another_period_is_another_count(tmp_path: Path) -> None:
    shared = SharedTable.alone()
    path = stored(tmp_path / "usage.db", used(T0 - 13 * HOUR, 100), used(T0 - 1, 50))
    day, month = levels(shared, b={"tokens": 200, "per": "day"}), levels(shared, b={"tokens": 200})
    await begin(day, path, T0)
    await begin(month, path, T0)
    assert (left(day, of()), left(month, of())) == (150, 50)


async def test_a_record_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    made = levels(SharedTable.alone(), b={"tokens": 200})
    with pytest.raises(StoreError, match="cannot be used"):
        await begin(made, str(tmp_path / "nowhere" / "usage.db"), T0)
