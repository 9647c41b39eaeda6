"""A SQLite file in WAL mode that several processes open: made whole or not at all, and for its owner alone.

A file that is made where others open it already can be locked against them while it is turned to WAL; so it is made
under another name, with all its tables, and then gets its own. The file is never opened beside SQLite either: closing a
descriptor lets go of every lock that the process has on the file (POSIX), those of its other connections too.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress

_WAL_BYTES = 8 << 20


def open_file(path: str, schema: str, version: int, busy_s: float) -> sqlite3.Connection:
    """A connection in autocommit mode. The file is made with ``schema`` if it is not there, or empty. version: of the
    schema. busy_s: how long is waited for others. Raises sqlite3.Error, also if it has another version; OSError."""
    if not os.path.exists(path):
        _make(path, schema, version)
    connection = _connect(path, busy_s)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        found = version_of(connection)
        if found == 0:
            _prepare(connection, schema, version)
        elif found != version:
            raise sqlite3.DatabaseError(
                f"it is of another release (schema {found}); name another file, or move it away"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def version_of(connection: sqlite3.Connection) -> int:
    """The schema's version; 0: there is none."""
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return found


def _connect(path: str, busy_s: float) -> sqlite3.Connection:
    # Used by one thread at a time.
    return sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)


def _prepare(connection: sqlite3.Connection, schema: str, version: int) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(f"BEGIN IMMEDIATE; {schema} PRAGMA user_version = {version}; COMMIT;")


def _make(path: str, schema: str, version: int) -> None:
    made = f"{path}.new-{os.getpid()}-{os.urandom(4).hex()}"
    os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    try:
        with closing(_connect(made, 0.0)) as connection:
            _prepare(connection, schema, version)
        with suppress(FileExistsError):  # somebody else was first
            os.link(made, path)
    finally:
        os.unlink(made)
