"""A SQLite file in WAL mode that several processes open: made whole or not at all, and for its owner alone.

A file that is made where others open it already can be locked against them while it is turned to WAL; so it is made
under another name, with all its tables, and then gets its own. The file is never opened beside SQLite either: closing a
descriptor lets go of every lock that the process has on the file (POSIX), those of its other connections too.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from urllib.parse import quote

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


def why_unusable(path: str, table: str, version: int) -> str | None:
    """Why ``open_file`` would fail, or find another's tables; None: it would not. Leaves everything as it is.

    For a process that has no connection to the file. table: one of the schema's.
    """
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        return f"there is no directory {directory}; make it or name another one"
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        why = error.strerror or error
        return (
            f"no file can be made in {directory}: {why}; name another directory, or let who runs headrace write there"
        )
    if not os.path.exists(path):
        return None
    if not os.path.isfile(path) or not os.access(path, os.R_OK | os.W_OK):
        return f"{path} is no file that can be read and written; name another one"
    try:
        # Immutable: neither locked nor recovered, so that nothing appears beside it.
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True)) as connection:
            found = version_of(connection)
            is_ours = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is not None
    except sqlite3.Error as error:
        return f"{path} cannot be used: {error}; name another file, or move it away"
    if found == 0 and not is_ours:
        return None
    if found != version:
        return f"{path} is of another release (schema {found}); name another file, or move it away"
    return None if is_ours else f"{path} holds something else; name another file"


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
