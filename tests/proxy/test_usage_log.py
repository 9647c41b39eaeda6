"""Records on their way to the file: added up, written beside the requests, kept while the disk refuses, and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from proxy import usage_log
from proxy.usage_log import UsageLog, UsageRecord
from proxy.usage_store import Place, StoreError, Sums, UsageStore

WALL = 1_796_040_123.0


def record(**facts: Any) -> UsageRecord:
    return UsageRecord(WALL, "k", "acme", "search", "m", "up", "r", 200, 10, 5)._replace(**facts)


class Count:
    def __init__(self) -> None:
        self.num = 0

    def __call__(self, num: int) -> None:
        self.num += num


@asynccontextmanager
async def opened(file: Path, dropped: Callable[[int], None] = Count(), keep_s: float = 1e9) -> AsyncIterator[UsageLog]:  # noqa: B008
    log = UsageLog(str(file), keep_s, 1 << 30, Count(), dropped)
    try:
        yield log
    finally:
        await log.close()


def rows(file: Path) -> list[tuple[Place, Sums]]:
    with closing(UsageStore(str(file))) as store:
        return list(store.since(0.0))


async def test_records_are_added_up_and_written_at_the_end_at_the_latest(tmp_path: Path) -> None:
    file = tmp_path / "usage.db"
    async with opened(file) as log:
        log.record(record())
        log.record(record(wall_at=WALL + 5, cached_tokens=3, estimated=True))
        log.record(record(model="other", status=499))
    slot = int(WALL) // 900 * 900
    assert rows(file) == [
        (Place(slot, "k", "acme", "search", "m", "up", "r", 200), Sums(2, 20, 10, 3, 1, WALL + 5)),
        (Place(slot, "k", "acme", "search", "other", "up", "r", 499), Sums(1, 10, 5, 0, 0, WALL)),
    ]


async def test_what_nobody_could_have_said_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "usage.db"
    async with opened(file) as log:
        log.record(record(model="\udcff" + "x" * 1000, prompt_tokens=10**30, completion_tokens=-5))
    ((place, sums),) = rows(file)
    assert len(place.model) == 256
    assert (sums.prompt_tokens, sums.completion_tokens) == ((1 << 36) - 1, 0)


async def test_names_that_a_key_makes_up_do_not_push_others_out(tmp_path: Path) -> None:
    file = tmp_path / "usage.db"
    async with opened(file) as log:
        for i in range(usage_log.MAX_WAITING + 10):
            log.record(record(model=f"made-up-{i}"))
        log.record(record(model="made-up-7"))
        log.record(record(key_id="other", model="real"))
        log.record(record(wall_at=WALL + 900, model="real"))
    kept = rows(file)
    assert len(kept) == usage_log.MAX_MODELS + 3
    sums = {(place.key, place.model): each.requests for place, each in kept}
    assert sums["k", usage_log.OTHER_MODELS] == usage_log.MAX_WAITING + 10 - usage_log.MAX_MODELS
    assert (sums["k", "made-up-7"], sums["other", "real"], sums["k", "real"]) == (2, 1, 1)


async def test_it_is_written_while_requests_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "_WRITE_S", 0.0)
    written = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Told(UsageStore):
        def add(self, sums: Any) -> None:
            super().add(sums)
            loop.call_soon_threadsafe(written.set)

    monkeypatch.setattr(usage_log, "UsageStore", Told)
    file = tmp_path / "usage.db"
    async with opened(file) as log:
        for i in range(3):
            log.record(record(wall_at=WALL + i))
            await asyncio.wait_for(written.wait(), 30.0)
            written.clear()
            assert rows(file)[0][1].requests == i + 1


async def test_what_cannot_be_written_is_kept_told_once_and_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(usage_log, "_WRITE_S", 0.0)
    enough = asyncio.Event()
    loop = asyncio.get_running_loop()
    failures: list[int] = []

    class Failing(UsageStore):
        def add(self, sums: Any) -> None:
            if len(failures) < 3:
                failures.append(1)
                raise StoreError("the record of usage cannot be used: disk full")
            super().add(sums)
            loop.call_soon_threadsafe(enough.set)

    monkeypatch.setattr(usage_log, "UsageStore", Failing)
    file, dropped = tmp_path / "usage.db", Count()
    async with opened(file, dropped) as log:
        log.record(record())
        log.record(record())
        await asyncio.wait_for(enough.wait(), 30.0)
    assert rows(file)[0][1].requests == 2
    assert dropped.num == 0
    assert [each.getMessage() for each in caplog.records] == [
        "the record of usage cannot be used: disk full; it is tried again"
    ]


async def test_what_finds_no_room_is_counted_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(usage_log, "MAX_WAITING", 2)
    file, dropped = tmp_path / "usage.db", Count()
    async with opened(file, dropped) as log:
        for name in "abcab":
            log.record(record(model=name))
    assert [(place.model, sums.requests) for place, sums in rows(file)] == [("a", 2), ("b", 2)]
    assert dropped.num == 1
    assert "more than 2 sums wait to be written" in caplog.text


async def test_at_the_end_what_could_not_be_written_is_counted(tmp_path: Path) -> None:
    dropped = Count()
    async with opened(tmp_path / "nowhere" / "usage.db", dropped) as log:
        log.record(record())
        log.record(record())
    assert dropped.num == 2


async def test_what_is_older_than_is_kept_goes(tmp_path: Path) -> None:
    file = tmp_path / "usage.db"
    async with opened(file, keep_s=86400.0) as log:
        log.record(record(wall_at=1_000_000_000.0))
    assert rows(file) == []


async def test_what_was_added_is_not_added_again_where_forgetting_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(UsageStore):
        def forget(self, before: float, max_bytes: int) -> bool:
            raise StoreError("locked")

    monkeypatch.setattr(usage_log, "UsageStore", Failing)
    file = tmp_path / "usage.db"
    async with opened(file) as log:
        log.record(record())
    assert rows(file)[0][1].requests == 1
    assert "locked; what is old stays for now" in caplog.text
