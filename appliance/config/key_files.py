"""Whether files of API keys can be used, and whether what keys name is there: once, however many routes read them.

A key that was revoked is refused whatever it names, so that it holds up nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from appliance.config.problems import Finding, Loc
from appliance.config.tables import HeadraceConfig
from proxy.config_routes import unknown
from proxy.keys import KeyEntry, KeysError, parse_keys

_MAX_NAMED = 3


def check_key_files(config: HeadraceConfig, contents: Mapping[str, bytes]) -> Iterator[Finding]:
    """What is wrong with them. contents: of files, by their names; one that could not be read has been told before."""
    for file, loc in _places(config).items():
        if file in contents:
            try:
                entries = parse_keys(contents[file])
            except KeysError as error:
                yield loc, f"{file}: {error}"
            else:
                yield from _check_budgets(config, file, loc, entries)


def _places(config: HeadraceConfig) -> dict[str, Loc]:
    """The first place of each file."""
    places: dict[str, Loc] = {}
    for index, route in enumerate(config.routes):
        auth = getattr(route.policies, "auth", None)
        if auth is not None:
            places.setdefault(auth.keys, ("routes", index, "policies", "auth", "keys"))
    return places


def _check_budgets(config: HeadraceConfig, file: str, loc: Loc, entries: tuple[KeyEntry, ...]) -> Iterator[Finding]:
    """Amounts of keys' own, of budgets that are none."""
    known = {name: table for name, table in config.budgets.items() if table.key == "api_key"}
    owners: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        for name, unit, _ in entry.budgets if entry.revoked is None else ():
            if name not in known or getattr(known[name], unit) is None:
                owners.setdefault((name, unit), []).append(entry.id)
    for (name, unit), ids in owners.items():
        what = unknown(f"budget of {unit} by api_key", name, known)
        yield loc, f"{file}: {_listed(ids)}: {what}; correct the key's `budgets` there, or revoke it"


def _listed(ids: list[str]) -> str:
    more = len(ids) - _MAX_NAMED
    return ", ".join(ids[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
