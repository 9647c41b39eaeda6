"""Whether the SQLite files that the configuration names can be used, by this user, for what they are named for.

Judged as a start would find them, and left as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.config.problems import Finding, Loc
from appliance.config.tables import HeadraceConfig
from proxy import usage_store
from proxy.idempotency import sqlite_store
from proxy.sqlite_file import why_unusable


def check_stores(config: HeadraceConfig) -> Iterator[Finding]:
    """What is wrong with each file, at the first place that names it."""
    usage = config.usage.path if config.usage is not None else None
    if usage is not None and (why := why_unusable(usage, "usage", usage_store.SCHEMA_VERSION)):
        yield ("usage", "path"), why
    for path, loc in _answers(config).items():
        if path == usage:
            yield loc, f"{path} is also the record of usage; name another file"
        elif why := why_unusable(path, "answers", sqlite_store.SCHEMA_VERSION):
            yield loc, why


def _answers(config: HeadraceConfig) -> dict[str, Loc]:
    """The files of kept answers."""
    places: dict[str, Loc] = {}
    for index, route in enumerate(config.routes):
        idempotency = getattr(route.policies, "idempotency", None)
        if idempotency is not None and idempotency.store != "memory":
            loc: Loc = ("routes", index, "policies", "idempotency", "store", "path")
            places.setdefault(idempotency.store.path, loc)
    return places
