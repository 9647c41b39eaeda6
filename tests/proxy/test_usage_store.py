"""The file of usage: sums that add up from several workers, bounded in time and size, refused if it is no such file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proxy.usage_store import SLOT_S, Place, StoreError, Sums, UsageStore

SLOT = 1_796_040_000 // SLOT_S * SLOT_S


def place(slot: int = SLOT, key: str = "k", model: str = "m") -> Place:
    return Place(slot, key, "acme", "search", model, "up", "r", 200)


def sums(n: int = 1, last_at: float = SLOT + 1.0) -> Sums:
    return Sums(n, 10 * n, 5 * n, n, 0, last_at)


def test_what_several_workers_add_is_added_up(tmp_path: Path) -> None:
    path = str(tmp_path / "usage.db")
    with closing(UsageStore(path)) as one, closing(UsageStore(path)) as other:
        one.add({place(): sums(1)})
        other.add({place(): sums(2, SLOT + 9.0), place(model="n"): sums(4)})
        assert list(one.since(SLOT + 600.0)) == [(place(), sums(3, SLOT + 9.0)), (place(model="n"), sums(4))]
        (row,) = one.used_since(SLOT, 1e12)
        assert (row.key, row.requests, row.tokens, row.last_at) == ("k", 7, 105, SLOT + 9.0)
        assert len(one.used_since(SLOT, 5.0)) == 2
        assert [row.requests for row in one.used_since(SLOT + 5.0, 5.0)] == [3]
        assert one.used_since(SLOT + 10.0, 5.0) == []
        assert list(other.since(SLOT + SLOT_S)) == []


def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    with closing(UsageStore(str(tmp_path / "usage.db"))) as store:
        store.add({place(): sums()})
        assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_what_is_too_old_goes(tmp_path: Path) -> None:
    with closing(UsageStore(str(tmp_path / "usage.db"))) as store:
        store.add({place(SLOT + i * SLOT_S): sums() for i in range(4)})
        assert store.forget(SLOT + 2.0 * SLOT_S, 1 << 30) is False
        assert [each.slot_at for each, _ in store.since(0.0)] == [SLOT + 2 * SLOT_S, SLOT + 3 * SLOT_S]


def test_the_oldest_makes_room_where_the_file_is_too_large(tmp_path: Path) -> None:
    file = tmp_path / "usage.db"
    with closing(UsageStore(str(file))) as store:
        for i in range(40):
            store.add({place(SLOT + i * SLOT_S, f"k{j:04d}" + "x" * 200): sums() for j in range(100)})
            while store.forget(0.0, 256 << 10):
                pass
        slots = {each.slot_at for each, _ in store.since(0.0)}
        assert max(slots) == SLOT + 39 * SLOT_S
        assert 0 < len(slots) < 20
    assert file.stat().st_size < 512 << 10


def test_an_empty_file_that_is_too_large_is_left_alone(tmp_path: Path) -> None:
    with closing(UsageStore(str(tmp_path / "usage.db"))) as store:
        assert store.forget(0.0, 1) is False


def test_a_file_of_another_kind_or_release_is_refused_and_stays(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_bytes(b"something that somebody needs " * 100)
    with pytest.raises(StoreError, match=r"notes\.txt cannot be used"):
        UsageStore(str(other))
    assert other.read_bytes().startswith(b"something that somebody needs")
    later = tmp_path / "later.db"
    with closing(sqlite3.connect(later)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(StoreError, match=r"of another release \(schema 2\)"):
        UsageStore(str(later))
    with pytest.raises(StoreError, match="No such file or directory"):
        UsageStore(str(tmp_path / "nowhere" / "usage.db"))
