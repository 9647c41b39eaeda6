"""The kinds of keys by which a limit may count, as they are written. Pure."""

from __future__ import annotations

import re
from typing import Final

PLAIN: Final = frozenset({"client", "api_key", "tenant", "team", "route", "model", "all"})
_PREFIX: Final = re.compile(r"client/(\d{1,2})(?:/(\d{1,3}))?")
_HEADER: Final = re.compile(r"header:([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100})")
_EXAMPLES: Final = "client, client/24, client/24/56, api_key, tenant, team, route, model, header:NAME, all"


def check_kind(kind: str) -> str:
    """The kind, if it is one. Raises ValueError."""
    if kind in PLAIN or header_of(kind) or prefix_of(kind) is not None:
        return kind
    raise ValueError(f"{kind!r} is no key of a limit; known: {_EXAMPLES}")


def header_of(kind: str) -> str:
    """The field of ``header:NAME``; "": it is no such kind."""
    found = _HEADER.fullmatch(kind)
    return found[1] if found is not None else ""


def prefix_of(kind: str) -> tuple[int, int] | None:
    """The bits of ``client/24`` or ``client/24/56``: of IPv4 and of IPv6."""
    found = _PREFIX.fullmatch(kind)
    bits = (int(found[1]), int(found[2] or 64)) if found is not None else (99, 0)
    return bits if bits[0] <= 32 and bits[1] <= 128 else None
