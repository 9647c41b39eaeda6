"""SQLite files that several processes open at once: made whole, and no lock is lost by who opens them again."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from proxy.sqlite_file import open_file, version_of, why_unusable
from tests.documents import ROOT

SCHEMA = "CREATE TABLE IF NOT EXISTS t (n INTEGER);"
OPENING = """
import sys
from proxy.sqlite_file import open_file
print("here", flush=True)
sys.stdin.readline()
open_file(sys.argv[1], "CREATE TABLE t (n INTEGER);", 3, 5.0).execute("INSERT INTO t VALUES (1)")
"""


def opened(file: Path, version: int = 3) -> sqlite3.Connection:
    return open_file(str(file), SCHEMA, version, 5.0)


def test_processes_that_make_it_at_once_all_have_it(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", OPENING, str(file)],
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(4)
    ]  # fmt: skip
    for maker in makers:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "here\n"
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("\n")
        maker.stdin.flush()
    assert [maker.communicate(timeout=60) and maker.returncode for maker in makers] == [0] * 4
    with closing(opened(file)) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (4,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert {each.name for each in tmp_path.iterdir()} == {"a.db", "a.db-wal", "a.db-shm"}
        assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}


def test_who_comes_second_leaves_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.db"
    with closing(opened(file)) as first:
        first.execute("INSERT INTO t VALUES (7)")
        monkeypatch.setattr(os.path, "exists", lambda _path: False)
        with closing(opened(file)) as second:
            assert second.execute("SELECT n FROM t").fetchall() == [(7,)]
    assert [each.name for each in tmp_path.iterdir()] == ["a.db"]


def test_an_empty_file_is_made_use_of(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    file.touch()
    with closing(opened(file)) as connection:
        assert version_of(connection) == 3


def test_another_version_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "a.db").close()
    with pytest.raises(sqlite3.DatabaseError, match=r"of another release \(schema 3\)"):
        opened(tmp_path / "a.db", version=4)


def test_opening_it_again_takes_no_lock_from_who_has_it_open(tmp_path: Path) -> None:
    file = tmp_path / "a.db"

    def num_locks() -> int:
        found = f":{file.stat().st_ino} "
        lines = Path("/proc/locks").read_text().splitlines()
        return sum(found in line and f" {os.getpid()} " in line for line in lines)

    with closing(opened(file)) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        before = num_locks()
        if not before:
            pytest.skip("/proc/locks does not show them here")
        opened(file).close()
        assert num_locks() == before


def test_a_file_that_can_be_used_or_made_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "a b?.db"
    assert why_unusable(str(file), "t", 3) is None
    assert list(tmp_path.iterdir()) == []
    file.touch()
    assert why_unusable(str(file), "t", 3) is None
    assert file.stat().st_size == 0
    file.unlink()
    opened(file).close()
    before = file.read_bytes()
    assert why_unusable(str(file), "t", 3) is None
    assert [each.name for each in tmp_path.iterdir()] == ["a b?.db"]
    assert file.read_bytes() == before
    assert (
        why_unusable(str(file), "t", 4)
        == f"{file} is of another release (schema 3); name another file, or move it away"
    )
    assert why_unusable(str(file), "other", 3) == f"{file} holds something else; name another file"


def test_a_file_that_cannot_be_used_is_told_as_a_start_would_find_it(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but long enough to be looked at " * 100)
    for path, says in (
        (tmp_path / "text", "text cannot be used: file is not a database; name another file"),
        (tmp_path / "none" / "a.db", "there is no directory "),
        (Path("/proc/a.db"), "no file can be made in /proc: "),
    ):
        assert says in (why_unusable(str(path), "t", 3) or "")
        with pytest.raises((sqlite3.Error, OSError)):
            opened(path)
    (tmp_path / "folder").mkdir()
    assert "folder is no file that can be read and written" in (why_unusable(str(tmp_path / "folder"), "t", 3) or "")
