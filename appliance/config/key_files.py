"""Whether files of API keys can be used, and whether what keys name is there: once, however many routes read them.

A key that was revoked is refused whatever it names, so that it holds up nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from appliance.config.problems import Finding, Loc
from appliance.config.tables import HeadraceConfig
from proxy.config_routes import ENGINE, ProxyConfig, unknown
from proxy.keys import Allowed, KeyEntry, KeysError, parse_keys

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


def check_names(config: HeadraceConfig, proxy: ProxyConfig, contents: Mapping[str, bytes]) -> Iterator[Finding]:
    """Models and upstreams that keys may use and that are not there, which harms nobody: warnings. contents: of files
    that can be used."""
    upstreams = {*config.upstreams, ENGINE}
    for file, loc in _places(config).items():
        models = _models(config, proxy, file)
        unknown_models: dict[str, list[str]] = {}
        unknown_upstreams: dict[str, list[str]] = {}
        for entry in parse_keys(contents[file]):
            allow = entry.allow if entry.revoked is None else Allowed()
            for name in allow.models or () if models else ():
                if not any(Allowed(models=(name,)).model(model) for model in models or ()):
                    unknown_models.setdefault(name, []).append(entry.id)
            for name in allow.upstreams:
                if name not in upstreams and name != "*":
                    unknown_upstreams.setdefault(name, []).append(entry.id)
        for name, ids in unknown_models.items():
            yield loc, f"{file}: {_listed(ids)}: {unknown('model', name, models or ())}"
        for name, ids in unknown_upstreams.items():
            yield loc, f"{file}: {_listed(ids)}: {unknown('upstream', name, upstreams)}"


def _models(config: HeadraceConfig, proxy: ProxyConfig, file: str) -> set[str] | None:
    """All models that the keys of a file can come to, by the names that requests use; None: an upstream has others."""
    models: set[str] = set()
    for route in config.routes:
        auth = getattr(route.policies, "auth", None)
        if auth is None or auth.keys != file or route.to is None:
            continue
        if route.models is not None:
            served = (*route.models.models, *proxy.variant_models(route))
            models.update(served, *(config.model_routes[name].aliases for name in served))
        elif route.to == ENGINE and config.models.repository is None and not proxy.variants_of(route):
            models.update(config.models.by_name)
        else:
            return None
    return models


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
