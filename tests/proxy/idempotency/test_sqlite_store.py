"""Answers in a SQLite file: kept across restarts and workers, bounded, private, and gone when their time is over."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from hashlib import sha256
from pathlib import Path

import pytest

from proxy.idempotency.key import place_of
from proxy.idempotency.sqlite_store import MAX_WAITING, SqliteStore
from proxy.idempotency.store import StoreError
from proxy.shared.answers import SharedAnswers
from proxy.shared.layout import PAGE_BYTES
from proxy.shared.table import SharedTable
from tests.proxy.shared.test_answers import SMALL

LATER = 1e12


def place(name: object) -> bytes:
    return sha256(str(name).encode()).digest()


class Dropped:
    def __init__(self) -> None:
        self.num = 0

    def __call__(self, num: int) -> None:
        self.num += num


def journal(journal_bytes: int = 1 << 20) -> SharedAnswers:
    """The memory of one headrace: another has another."""
    return SharedTable.alone(SMALL._replace(journal=64, journal_bytes=journal_bytes)).journal()


@asynccontextmanager
async def store(
    path: Path,
    *,
    max_bytes: int = 1 << 30,
    max_entries: int = 1000,
    dropped: Dropped | None = None,
    shared: SharedAnswers | None = None,
) -> AsyncIterator[SqliteStore]:
    """One worker's: of a headrace of its own, or of the one with this memory."""
    made = SqliteStore(str(path), max_bytes, max_entries, dropped or Dropped(), shared or journal())
    try:
        yield made
    finally:
        made.close()


async def put(kept: SqliteStore, name: object, answer: bytes, expires_at: float = LATER, now: float = 0.0) -> None:
    done = asyncio.Event()
    kept.put(place(name), answer, expires_at, now, done.set)
    await asyncio.wait_for(done.wait(), 30.0)


async def get(kept: SqliteStore, name: object, now: float = 0.0) -> bytes | None:
    found = kept.get(place(name), now)
    return found if isinstance(found, bytes) else await found


async def written(path: Path, names: Iterable[object], now: float = 0.0) -> list[bytes | None]:
    """What another headrace finds."""
    async with store(path) as other:
        return [await get(other, name, now) for name in names]


def modes(directory: Path) -> list[int]:
    return [stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()]


def contents(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.iterdir())


async def test_L22_i_an_answer_outlives_a_restart_and_not_its_time(tmp_path: Path) -> None:
    file = tmp_path / "answers.db"
    async with store(file) as before:
        await put(before, "a", b"answer", expires_at=100.0)
        assert await get(before, "a", 99.0) == b"answer"
    async with store(file) as after:
        assert await get(after, "a", 99.0) == b"answer"
        assert await get(after, "a", 100.0) is None
        assert await get(after, "b") is None
        await put(after, "a", b"another", now=100.0)
        assert await get(after, "a", 101.0) == b"another"
    assert await written(file, ["a"], 101.0) == [b"another"]


async def test_workers_share_the_file_and_nobody_else_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "answers.db"
    async with store(file) as one, store(file) as other:
        await asyncio.gather(*(put(each, (each is one, i), b"%d" % i) for each in (one, other) for i in range(50)))
        for of_one in (True, False):
            assert [await get(other, (of_one, i)) for i in range(50)] == [b"%d" % i for i in range(50)]
        assert modes(tmp_path) == [0o600] * 3


async def test_K02_the_file_holds_neither_keys_nor_names(tmp_path: Path) -> None:
    file = tmp_path / "answers.db"
    async with store(file) as kept:
        done = asyncio.Event()
        kept.put(place_of("r", "key alice", b"sk-SECRET"), b"answer", LATER, 0.0, done.set)
        await asyncio.wait_for(done.wait(), 30.0)
        written = contents(tmp_path)
    assert b"answer" in written
    assert b"SECRET" not in written
    assert b"alice" not in written


async def test_the_oldest_make_room_for_the_newest(tmp_path: Path) -> None:
    dropped = Dropped()
    async with store(tmp_path / "few.db", max_entries=10, dropped=dropped) as few:
        for i in range(25):
            await put(few, i, b"x")
    assert await written(tmp_path / "few.db", range(25)) == [None] * 15 + [b"x"] * 10
    assert dropped.num == 15


async def test_the_file_does_not_grow_beyond_its_size(tmp_path: Path) -> None:
    file = tmp_path / "small.db"
    async with store(file, max_bytes=1 << 20) as small:
        for i in range(100):
            await put(small, i, os.urandom(40_000))
    first, last = await written(file, [0, 99])
    assert first is None
    assert last is not None
    assert file.stat().st_size <= (1 << 20) + 65536


async def test_what_has_expired_goes_before_what_has_not(tmp_path: Path) -> None:
    dropped = Dropped()
    async with store(tmp_path / "answers.db", max_entries=10, dropped=dropped) as kept:
        for i in range(9):
            await put(kept, i, b"x", expires_at=10.0)
        await put(kept, "late", b"y", now=11.0)
        assert dropped.num == 0
    with closing(sqlite3.connect(tmp_path / "answers.db")) as file:
        assert file.execute("SELECT count(*) FROM answers").fetchone() == (1,)


async def test_what_was_put_is_found_by_all_workers_before_it_is_written(tmp_path: Path) -> None:
    """As where the one that has put it is killed, or its disk is slow."""
    shared, go_on, done = journal(), threading.Event(), asyncio.Event()
    async with store(tmp_path / "a.db", shared=shared) as one, store(tmp_path / "a.db", shared=shared) as other:
        one._thread.submit(go_on.wait, 30.0)
        one.put(place("a"), b"answer", 100.0, 0.0, done.set)
        assert other.get(place("a"), 99.0) == one.get(place("a"), 99.0) == b"answer"
        assert await get(other, "a", 100.0) is None
        assert await written(tmp_path / "a.db", ["a"]) == [None]
        assert not done.is_set()
        assert one.num_waiting == 1
        go_on.set()
        await one.flush()
        assert await written(tmp_path / "a.db", ["a"]) == [b"answer"]
        await asyncio.wait_for(done.wait(), 30.0)
        assert one.num_waiting == 0


async def test_what_does_not_fit_into_the_journal_is_found_in_the_file_and_nothing_is_lost(tmp_path: Path) -> None:
    dropped = Dropped()
    async with store(tmp_path / "a.db", dropped=dropped, shared=journal(4 * PAGE_BYTES)) as kept:
        await put(kept, "large", bytes(PAGE_BYTES))
        for i in range(50):  # which fill it several times
            await put(kept, i, bytes(1000))
        assert [await get(kept, name) for name in ("large", *range(50))] == [bytes(PAGE_BYTES), *[bytes(1000)] * 50]
    assert dropped.num == 0


async def test_what_too_many_wait_for_is_found_until_headrace_stops_and_counted(tmp_path: Path) -> None:
    dropped, go_on, num_done = Dropped(), threading.Event(), 0

    def done() -> None:
        nonlocal num_done
        num_done += 1

    async with store(tmp_path / "a.db", dropped=dropped) as kept:
        kept._thread.submit(go_on.wait, 30.0)
        for i in range(MAX_WAITING + 1):
            kept.put(place(i), b"x", LATER, 0.0, done)
        assert kept.get(place(MAX_WAITING), 0.0) == b"x"
        assert (dropped.num, num_done) == (1, 1)
        go_on.set()
        await kept.flush()
    assert await written(tmp_path / "a.db", [MAX_WAITING - 1, MAX_WAITING]) == [b"x", None]


async def test_a_file_that_is_no_store_refuses_and_stays_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "answers.db"
    file.write_bytes(b"not a database, but something that somebody needs" * 100)
    dropped = Dropped()
    async with store(file, dropped=dropped) as kept:
        for _ in range(3):
            with pytest.raises(StoreError):
                await get(kept, "a")
        await put(kept, "a", b"answer")  # ``done`` is called all the same
    assert dropped.num == 1
    assert file.read_bytes().startswith(b"not a database")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
