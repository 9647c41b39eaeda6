"""Who has used how many tokens of which model, kept in a SQLite file in WAL mode, which all workers of the box open.

Rows are sums over a quarter of an hour, in which every window of a calendar begins and ends, whatever its time zone.
Bounded: what is too old goes, and of a file that is too large the oldest. The file tells who asked which model and how
much, hence nobody but its owner may read it. To be used by one thread at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from proxy.sqlite_file import open_file

SLOT_S: Final = 900
SCHEMA_VERSION: Final = 1
_BUSY_S: Final = 5.0  # for the writers of other workers
_FORGOTTEN_AT_ONCE: Final = 1000  # rows
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS usage (
    slot_at INTEGER NOT NULL, key TEXT NOT NULL, tenant TEXT NOT NULL, team TEXT NOT NULL, model TEXT NOT NULL,
    upstream TEXT NOT NULL, route TEXT NOT NULL, status INTEGER NOT NULL,
    requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL, estimated INTEGER NOT NULL, last_at REAL NOT NULL,
    PRIMARY KEY (slot_at, key, tenant, team, model, upstream, route, status)
) STRICT, WITHOUT ROWID;
"""
_ADD: Final = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    requests = requests + excluded.requests, prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens,
    cached_tokens = cached_tokens + excluded.cached_tokens, estimated = estimated + excluded.estimated,
    last_at = max(last_at, excluded.last_at)
"""
_USED: Final = """
SELECT key, tenant, team, sum(requests), sum(prompt_tokens + completion_tokens), max(last_at) FROM usage
WHERE slot_at > ? AND last_at >= ? GROUP BY CAST(last_at / ? AS INTEGER), key, tenant, team ORDER BY max(last_at)
"""
_FORGET: Final = "DELETE FROM usage WHERE slot_at < ?"
#: Of a table without row ids no number of rows can be deleted: the oldest slots can.
_OLDEST: Final = "SELECT max(slot_at) FROM (SELECT slot_at FROM usage ORDER BY slot_at LIMIT ?)"


class Place(NamedTuple):
    """What rows are told apart by."""

    slot_at: int
    key: str
    tenant: str
    team: str
    model: str
    upstream: str
    route: str
    status: int


class Sums(NamedTuple):
    """What is added up. estimated: requests whose tokens were; last_at: when the last one was admitted."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    estimated: int
    last_at: float

    def plus(self, other: Sums) -> Sums:
        """Both together."""
        return Sums(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.estimated + other.estimated,
            max(self.last_at, other.last_at),
        )


class Used(NamedTuple):
    """What was used under one API key in some time, of all models."""

    key: str
    tenant: str
    team: str
    requests: int
    tokens: int
    last_at: float


class StoreError(Exception):
    """The file cannot be used; the message says why and what to do."""


class UsageStore:
    """A connection to the file, made here with its table if need be. Raises StoreError, as all that is asked of it."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._connection = open_file(path, _SCHEMA, SCHEMA_VERSION, _BUSY_S)
        except (sqlite3.Error, OSError) as error:
            raise self._told(error) from None

    def add(self, sums: Mapping[Place, Sums]) -> None:
        """Add to the rows of these places, all or nothing."""
        try:
            with self._connection as connection:  # one transaction
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(_ADD, [(*place, *each) for place, each in sums.items()])
        except sqlite3.Error as error:
            raise self._told(error) from None

    def forget(self, before: float, max_bytes: int) -> bool:
        """Forget what is older, and the oldest of a file that is larger; some of it at a time. Whether the file was."""
        try:
            with self._connection as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_FORGET, (before,))
                (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
                (num_pages,) = connection.execute("PRAGMA page_count").fetchone()
                (num_free,) = connection.execute("PRAGMA freelist_count").fetchone()
                if (num_pages - num_free) * page_bytes <= max_bytes:
                    return False
                (oldest,) = connection.execute(_OLDEST, (_FORGOTTEN_AT_ONCE,)).fetchone()
                if oldest is not None:
                    connection.execute(_FORGET, (oldest + 1,))
                return oldest is not None
        except sqlite3.Error as error:
            raise self._told(error) from None

    def since(self, wall: float) -> Iterator[tuple[Place, Sums]]:
        """Every row of what was admitted at ``wall`` or later, or in the same quarter of an hour; the oldest first."""
        begin = int(wall // SLOT_S) * SLOT_S
        try:
            for row in self._connection.execute("SELECT * FROM usage WHERE slot_at >= ? ORDER BY slot_at", (begin,)):
                yield Place(*row[:8]), Sums(*row[8:])
        except sqlite3.Error as error:
            raise self._told(error) from None

    def used_since(self, wall: float, apart_s: float) -> list[Used]:
        """What was used under every API key from ``wall`` on, told apart by every ``apart_s``, in the order of time. A
        row of the quarter of an hour that ``wall`` is in counts if it was added to from then on."""
        try:
            return [Used(*row) for row in self._connection.execute(_USED, (wall - SLOT_S, wall, apart_s))]
        except sqlite3.Error as error:
            raise self._told(error) from None

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _told(self, error: Exception) -> StoreError:
        why = error.strerror if isinstance(error, OSError) else error
        return StoreError(f"the record of usage {self._path} cannot be used: {why}")
