"""Kept answers in a file that outlives restarts: SQLite in WAL mode, which all workers of the box open.

Answers are written by one thread per worker and read by another, so that nobody else waits for a disk; a reader waits
for no writer. At once they are put into a journal: memory that all workers share, and look into first. So what was put
is found whatever becomes of the worker that has put it; but what that one had not written when it was killed is gone
when headrace as a whole stops. An answer larger than an eighth of the journal would be in the file alone; none that the
configuration allows is.

What is written is there after the death of any process, and after a power failure all but the last moments. The file
holds whole answers, hence nobody but its owner may read it; keys, and who sent them, are in it as digests only.
Bounded: what has expired goes first, then the oldest, before anything is added.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Final

from proxy.idempotency.store import StoreError
from proxy.shared.answers import SharedAnswers
from proxy.sqlite_file import open_file

log = logging.getLogger("headrace.proxy")

MAX_WAITING: Final = 256  # answers that wait to be written, in one worker; and requests that wait to be read one
_BUSY_S: Final = 5.0  # for the writers of other workers
_EXPIRED_AT_ONCE: Final = 64  # rows deleted for one that is added
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS answers (
    id INTEGER PRIMARY KEY AUTOINCREMENT, place BLOB NOT NULL UNIQUE, expires_at REAL NOT NULL, answer BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS answers_by_expiry ON answers (expires_at);
"""
SCHEMA_VERSION: Final = 1
_FIND: Final = "SELECT answer FROM answers WHERE place = ? AND expires_at > ?"
_ADD: Final = "INSERT INTO answers (place, expires_at, answer) VALUES (?, ?, ?)"
_FORGET: Final = (
    "DELETE FROM answers WHERE id IN (SELECT id FROM answers WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)"
)
_ENDS: Final = "SELECT (SELECT min(id) FROM answers), (SELECT max(id) FROM answers)"


def _nothing() -> None:
    pass


class SqliteStore:
    """One worker's end. Opened when it is first used, and made if it is not there. dropped: told how many answers were
    not kept, or not as long as they were to be. journal: of all workers. num_waiting: answers yet to be written."""

    def __init__(
        self, path: str, max_bytes: int, max_entries: int, dropped: Callable[[int], None], journal: SharedAnswers
    ) -> None:
        self._path = path
        self._journal = journal
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._dropped = dropped
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._opening = Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="answers-read")
        self.num_waiting = 0
        self._num_reading = 0
        self._said = ""

    def get(self, place: bytes, now: float) -> bytes | Awaitable[bytes | None]:
        kept = self._journal.get(place, now)
        return kept if kept is not None else self._find(place, now)

    async def _find(self, place: bytes, now: float) -> bytes | None:
        """What the file has. Raises StoreError."""
        if self._num_reading >= MAX_WAITING:
            raise StoreError(f"{MAX_WAITING} requests wait for it")
        self._num_reading += 1
        work = asyncio.get_running_loop().run_in_executor(self._reading, self._read, place, now)
        work.add_done_callback(self._has_read)
        try:
            return await asyncio.shield(work)  # it is counted until it is done, whoever leaves
        except (sqlite3.Error, OSError) as error:
            self._say("the store of answers %s cannot be read: %s", error)
            raise StoreError(str(error)) from None

    def _has_read(self, work: asyncio.Future[bytes | None]) -> None:
        self._num_reading -= 1
        if not work.cancelled():
            work.exception()  # taken note of, if nobody waits any more

    def _read(self, place: bytes, now: float) -> bytes | None:
        """In the reading thread."""
        if self._reader is None:
            self._reader = self._open(_BUSY_S)
        row = self._reader.execute(_FIND, (place, now)).fetchone()
        return None if row is None else bytes(row[0])

    def put(self, place: bytes, answer: bytes, expires_at: float, now: float, done: Callable[[], None]) -> None:
        self._journal.put(place, answer, expires_at, now)  # what makes room there is in the file, or soon will be
        if self.num_waiting >= MAX_WAITING:
            self._dropped(1)
            done()
            return
        self.num_waiting += 1
        loop = asyncio.get_running_loop()

        def written(work: Future[int]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._written, work, done)

        self._thread.submit(self._write, place, answer, expires_at, now).add_done_callback(written)

    def _written(self, work: Future[int], done: Callable[[], None]) -> None:
        self.num_waiting -= 1
        error = work.exception()
        if error is not None:
            self._say("an answer cannot be kept in %s: %s", error)
        else:
            self._said = ""
        if num_dropped := 1 if error is not None else work.result():
            self._dropped(num_dropped)
        done()

    def _write(self, place: bytes, answer: bytes, expires_at: float, now: float) -> int:
        """In the thread. How many answers were dropped before their time."""
        if self._writer is None:
            self._writer = self._open(_BUSY_S)
        with self._writer as writer:  # one transaction
            writer.execute("BEGIN IMMEDIATE")
            writer.execute(_FORGET, (now, _EXPIRED_AT_ONCE))
            num_dropped = self._make_room(writer, len(answer))
            writer.execute("DELETE FROM answers WHERE place = ?", (place,))
            writer.execute(_ADD, (place, expires_at, answer))
        return num_dropped

    def _make_room(self, writer: sqlite3.Connection, num_bytes: int) -> int:
        """Delete the oldest while there are too many, or too little room in the file."""
        num_dropped = 0
        (page_bytes,) = writer.execute("PRAGMA page_size").fetchone()
        while True:
            oldest, newest = writer.execute(_ENDS).fetchone()
            if oldest is None:
                return num_dropped
            (num_pages,) = writer.execute("PRAGMA page_count").fetchone()
            (num_free,) = writer.execute("PRAGMA freelist_count").fetchone()
            is_full = (num_pages - num_free) * page_bytes + num_bytes > self._max_bytes
            if not is_full and newest - oldest + 1 < self._max_entries:
                return num_dropped
            writer.execute("DELETE FROM answers WHERE id = ?", (oldest,))
            num_dropped += 1

    def _open(self, busy_s: float) -> sqlite3.Connection:
        """A connection, to the file made here with its tables if need be. Used by one thread at a time."""
        with self._opening:
            return open_file(self._path, _SCHEMA, SCHEMA_VERSION, busy_s)

    def _say(self, text: str, error: BaseException) -> None:
        """Tell the log, once for each new kind of fault: every request may meet it."""
        if self._said != str(error):
            self._said = str(error)
            log.error(text, self._path, error)

    async def flush(self) -> None:
        """Return when nothing waits to be written."""
        await asyncio.get_running_loop().run_in_executor(self._thread, _nothing)  # behind all that waits

    def close(self) -> None:
        """Write what waits, and let go of the file."""
        self._thread.shutdown()
        self._reading.shutdown()
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = None

    def __del__(self) -> None:
        self._thread.shutdown(wait=False)
        self._reading.shutdown(wait=False)
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
