"""API keys as a file: what a key looks like, how it is kept, how the file is read. Pure.

A key is ``hr_`` and 43 characters of base64url, 256 random bits. Only its SHA-256 is kept: with so much entropy a slow
hash would add nothing but a way to exhaust the proxy. The file::

    keys:
      - id: laptop                 # shown in logs and listings; never the key
        hash: sha256:9f86d081...   # 64 hexadecimal digits
        created: 2026-01-31T12:00:00Z
        revoked: 2026-03-01T00:00:00Z   # optional: refused from the next reload on
        tenant: acme               # optional: whose key it is, for limits and budgets; team: within the tenant
        team: search
        allow:                     # optional: what most keys may not
          priority: true           # say X-Priority
          context: true            # send prompts beyond the context guard
          upstreams: [cloud]       # choose one by X-Prompt-Route
          models: [small, "qwen*"] # only these, by name or beginning; absent: all
        budgets:                   # optional: amounts of its own, of budgets by api_key
          daily: {tokens: 100000}
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

PREFIX = "hr_"
MAX_FILE_BYTES = 8 << 20
MAX_AMOUNT = (1 << 36) - 1  # of a budget

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,127}\*?|\*")
_OPTIONAL = ("revoked", "tenant", "team", "allow", "budgets")
_FIELDS = {"id", "hash", "created", *_OPTIONAL}
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc]
    """YAML without surprises: a key that is there twice is an error, not the last one's."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{name} is there twice", node.value[i][0].start_mark
                )
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


class Allowed(NamedTuple):
    """What a key may. models: None is all of them; a name that ends with * stands for all that begin so."""

    priority: bool = False
    context: bool = False
    upstreams: tuple[str, ...] = ()
    models: tuple[str, ...] | None = None

    def model(self, name: str) -> bool:
        """Whether the key may use this model."""
        return self.models is None or any(
            name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in self.models
        )


#: What a key may of which the file says nothing.
NOTHING_MORE = Allowed()


class KeyEntry(NamedTuple):
    """One key of the file. hash: ``sha256:<hex>``; created, revoked: as written, revoked None while it is valid.
    tenant, team: "" for none; a team is one of its tenant's. budgets: (name, unit, amount), where it has amounts of its
    own."""

    id: str
    hash: str
    created: str
    revoked: str | None = None
    tenant: str = ""
    team: str = ""
    allow: Allowed = NOTHING_MORE
    budgets: tuple[tuple[str, str, int], ...] = ()

    def budget(self, name: str, unit: str) -> int | None:
        """The key's own amount of a budget's "tokens" or "requests"; None: it has none of its own."""
        return next((amount for each, of, amount in self.budgets if each == name and of == unit), None)

    def budgets_by_name(self) -> dict[str, dict[str, int]]:
        """The same as the file has them."""
        tables: dict[str, dict[str, int]] = {}
        for name, unit, amount in self.budgets:
            tables.setdefault(name, {})[unit] = amount
        return tables


class KeysError(ValueError):
    """The keys file cannot be used; the message says where and why, and never shows a hash."""


def hash_key(key: str) -> str:
    """How a key is kept: ``sha256:`` and the hexadecimal SHA-256 of its UTF-8 bytes."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def parse_keys(data: bytes) -> tuple[KeyEntry, ...]:
    """The entries of a keys file, revoked ones included, in order; an empty file holds none. Raises KeysError."""
    if len(data) > MAX_FILE_BYTES:
        raise KeysError(f"the keys file is larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        document = yaml.load(data, Loader=_Loader)  # noqa: S506
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark is not None else ""
        raise KeysError(f"{place}not YAML: {getattr(error, 'problem', None) or 'unreadable'}") from None
    if document is None:
        return ()
    if not isinstance(document, dict) or set(document) != {"keys"}:
        raise KeysError("expected one table with the key `keys`, a list of entries")
    rows = document["keys"] or []
    if not isinstance(rows, list):
        raise KeysError("`keys` is not a list")
    entries = tuple(_entry(i, row) for i, row in enumerate(rows))
    _refuse_doubles(entries)
    return entries


def _entry(i: int, row: Any) -> KeyEntry:
    where = f"keys[{i}]"
    if not isinstance(row, dict) or not {"id", "hash"} <= set(row) <= _FIELDS:
        raise KeysError(f"{where}: expected a table with id, hash, created and optionally {', '.join(_OPTIONAL)}")
    name, digest = row["id"], row["hash"]
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise KeysError(f"{where}.id: expected up to 64 letters, digits, dots, dashes, underscores or @")
    if not isinstance(digest, str) or not _HASH.fullmatch(digest):
        raise KeysError(f"{where}.hash: expected sha256: and 64 hexadecimal digits, as `headrace keys add` writes it")
    revoked = row.get("revoked")
    tenant, team = _name(row, "tenant", where), _name(row, "team", where)
    if team and not tenant:
        raise KeysError(f"{where}.team: a team is one of a tenant's; say the tenant, too")
    allow = _allowed(row.get("allow") or {}, f"{where}.allow")
    budgets = tuple(_budgets(row.get("budgets") or {}, f"{where}.budgets"))
    return KeyEntry(name, digest, _instant(row.get("created")) or "", _instant(revoked), tenant, team, allow, budgets)


def _name(row: dict[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    if value is None:
        return ""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise KeysError(f"{where}.{field}: expected up to 64 letters, digits, dots, dashes, underscores or @")
    return value


def _allowed(table: Any, where: str) -> Allowed:
    if not isinstance(table, dict) or not set(table) <= set(Allowed._fields):
        raise KeysError(f"{where}: expected a table with some of {', '.join(Allowed._fields)}")
    for field in ("priority", "context"):
        if not isinstance(table.get(field, False), bool):
            raise KeysError(f"{where}.{field}: expected true or false")
    for field in ("upstreams", "models"):
        names = table.get(field, [])
        if not isinstance(names, list) or not all(isinstance(name, str) and _MODEL.fullmatch(name) for name in names):
            raise KeysError(f"{where}.{field}: expected a list of names")
    models = table.get("models")
    return Allowed(
        table.get("priority", False),
        table.get("context", False),
        tuple(table.get("upstreams", ())),
        tuple(models) if models is not None else None,
    )


def _budgets(table: Any, where: str) -> Iterator[tuple[str, str, int]]:
    if not isinstance(table, dict):
        raise KeysError(f"{where}: expected a table of budgets by name")
    for name, amounts in table.items():
        if not isinstance(name, str) or not isinstance(amounts, dict) or not amounts:
            raise KeysError(f"{where}: expected NAME: {{tokens: N}}, {{requests: N}}, or both")
        for unit, amount in amounts.items():
            if unit not in ("tokens", "requests") or type(amount) is not int or not 0 < amount <= MAX_AMOUNT:
                raise KeysError(f"{where}.{name}: expected tokens and requests as whole numbers from 1 to {MAX_AMOUNT}")
            yield name, unit, amount


def _instant(value: Any) -> str | None:
    """YAML reads an unquoted instant as a datetime; both spellings are kept as text. Absent, null and false: None."""
    if value is None or value is False:
        return None
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _refuse_doubles(entries: tuple[KeyEntry, ...]) -> None:
    ids: dict[str, int] = {}
    hashes: dict[str, int] = {}
    for i, entry in enumerate(entries):
        if entry.id in ids:
            raise KeysError(f"keys[{i}].id: {entry.id} is also keys[{ids[entry.id]}]; ids must differ")
        if entry.hash in hashes:
            raise KeysError(f"keys[{i}].hash: the same key as keys[{hashes[entry.hash]}]")
        ids[entry.id] = hashes[entry.hash] = i
