"""What the record of usage tells, added up by key, team, tenant, model, upstream, route, status, day or month.

Reads beside the workers that write, and changes nothing. What was used within the last second may be missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from proxy.usage_store import SCHEMA_VERSION, SLOT_S, StoreError

#: What may be added up by, as SQL has it; days and months are those of the box's own time zone.
BY: Final[dict[str, str]] = {
    "key": "key",
    "team": "CASE team WHEN '' THEN '' ELSE tenant || '/' || team END",
    "tenant": "tenant",
    "model": "model",
    "upstream": "upstream",
    "route": "route",
    "status": "status",
    "day": "date(slot_at, 'unixepoch', 'localtime')",
    "month": "strftime('%Y-%m', slot_at, 'unixepoch', 'localtime')",
}
_TIMES: Final = ("day", "month")
SUMS: Final = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "total_tokens", "estimated")
_SUMS: Final = (
    "sum(requests), sum(prompt_tokens), sum(completion_tokens), sum(cached_tokens), "
    "sum(prompt_tokens + completion_tokens), sum(estimated)"
)
_BUSY_S: Final = 5.0


def report(path: Path, by: Sequence[str], since: float, until: float) -> list[dict[str, Any]]:
    """A row for each combination of ``by``, with ``SUMS``: the times in their order, then who has used most. since,
    until: Unix time, to the quarter of an hour. Raises StoreError; KeyError: ``by`` is none of BY."""
    columns = [f'{BY[name]} AS "by_{name}"' for name in by]
    names = [f'"by_{name}"' for name in by]
    order = [name for name, each in zip(names, by, strict=True) if each in _TIMES]
    select = ", ".join([*columns, _SUMS])
    grouped = f"GROUP BY {', '.join(names)}" if names else "HAVING count(*)"
    query = f"SELECT {select} FROM usage WHERE slot_at >= ? AND slot_at < ? {grouped} "  # noqa: S608
    query += f"ORDER BY {', '.join([*order, f'{len(by) + 5} DESC', *names])}"
    first, end = int(since // SLOT_S) * SLOT_S, int(-(-until // SLOT_S)) * SLOT_S
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_BUSY_S)) as file:
            (version,) = file.execute("PRAGMA user_version").fetchone()
            if version != SCHEMA_VERSION:
                raise StoreError(f"{path} is no record of usage of this release (schema {version})")
            return [dict(zip((*by, *SUMS), row, strict=True)) for row in file.execute(query, (first, end))]
    except sqlite3.Error as error:
        raise StoreError(f"the record of usage {path} cannot be read: {error}") from None
