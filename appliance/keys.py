"""The file of API keys, as ``headrace keys`` changes it: a key is made, shown once, and only its hash is kept.

Owns writing; what the file looks like and how it is read is ``proxy.keys``. Every change reads the file under a lock,
and writes it whole or not at all. Keys are never taken out, so that an id in an old log line still means something.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from appliance.atomic import NewFile, write_atomically
from proxy.keys import NOTHING_MORE, PREFIX, Allowed, KeyEntry, KeysError, hash_key, parse_keys

_HEADER = "# API keys of Headrace: only their hashes. Changed by `headrace keys`; in use after `headrace reload`.\n"


def read_keys(path: Path) -> tuple[KeyEntry, ...]:
    """The entries of the file. Raises OSError if it cannot be read, KeysError if it is damaged."""
    return parse_keys(path.read_bytes())


def add_key(
    path: Path,
    key_id: str | None,
    now: datetime,
    *,
    tenant: str = "",
    team: str = "",
    allow: Allowed = NOTHING_MORE,
    budgets: tuple[tuple[str, str, int], ...] = (),
) -> tuple[str, str]:
    """Adds a new key and returns (its id, the key): the only time that the key is seen. Makes the file if needed.

    key_id: None takes the first of ``key-1``, ``key-2``, ... that is free. Raises KeysError if the id is taken, a name
    is none, or the file is damaged; OSError if it cannot be written.
    """
    key = PREFIX + secrets.token_urlsafe(32)
    with _locked(path):
        entries = read_keys(path) if path.exists() else ()
        taken = {entry.id for entry in entries}
        if key_id in taken:
            raise KeysError(f"there is a key with the id {key_id} already; choose another id")
        free = key_id or next(name for n in itertools.count(1) if (name := f"key-{n}") not in taken)
        entry = KeyEntry(free, hash_key(key), _instant(now), None, tenant, team, allow, budgets)
        _write(path, (*entries, entry))
    return free, key


def revoke_key(path: Path, key_id: str, now: datetime) -> KeyEntry:
    """Marks the key as revoked and returns its entry; one that was revoked before keeps its date.

    Raises KeysError if there is no such key or the file is damaged; OSError if it cannot be read or written.
    """
    with _locked(path):
        entries = list(read_keys(path))
        for index, entry in enumerate(entries):
            if entry.id == key_id:
                if entry.revoked is None:
                    entries[index] = entry._replace(revoked=_instant(now))
                    _write(path, tuple(entries))
                return entries[index]
    raise KeysError(f"there is no key with the id {key_id}; `headrace keys list` shows those there are")


def _write(path: Path, entries: tuple[KeyEntry, ...]) -> None:
    content = _spell(entries).encode()
    if parse_keys(content) != entries:  # a name that is none can spell more than itself
        raise KeysError("an id, a tenant and a team are up to 64 letters, digits, dots, dashes, underscores or @")
    write_atomically(NewFile(path, content))


def _spell(entries: Sequence[KeyEntry]) -> str:
    lines = [_HEADER, "keys:\n" if entries else "keys: []\n"]
    for entry in entries:
        lines += [f'  - id: "{entry.id}"\n', f"    hash: {entry.hash}\n", f'    created: "{entry.created}"\n']
        if entry.revoked is not None:
            lines.append(f'    revoked: "{entry.revoked}"\n')
        lines += [f'    {field}: "{name}"\n' for field in ("tenant", "team") if (name := getattr(entry, field))]
        allowed = {name: value for name, value in entry.allow._asdict().items() if value or value == ()}
        if entry.allow != NOTHING_MORE:
            lines.append(f"    allow: {json.dumps(allowed)}\n")  # JSON is YAML
        if entry.budgets:
            lines.append(f"    budgets: {json.dumps(entry.budgets_by_name())}\n")
    return "".join(lines)


def _instant(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time, so that of two commands neither loses the other's key.

    The directory is locked: the file itself is replaced, so a lock on it would guard the old one.
    """
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
