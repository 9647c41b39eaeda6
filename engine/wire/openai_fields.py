"""Reading fields of an OpenAI request: an explicit null is an absent field, and a wrong value is a 400 that names it.

Shared by the endpoints. Knows JSON values only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine.errors import Kind, RequestError, invalid

#: They cannot change an answer: taken, not used, and named in the header ``headrace-ignored``.
IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
        "parallel_tool_calls",
    }
)


def present(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say something: those that are null are left out."""
    return {name: value for name, value in body.items() if value is not None}


def integer(fields: Mapping[str, Any], name: str, default: int, *, low: int, high: int | None = None) -> int:
    """A whole number within [low, high]."""
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"{name} must be a whole number", name)
    if value < low or (high is not None and value > high):
        raise invalid(f"{name} must be {_range(low, high)}", name)
    return value


def number(fields: Mapping[str, Any], name: str, default: float, *, low: float, high: float) -> float:
    """A number within [low, high]."""
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(f"{name} must be a number", name)
    if not low <= value <= high:
        raise invalid(f"{name} must be {_range(low, high)}", name)
    return float(value)


def boolean(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    """true or false."""
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise invalid(f"{name} must be true or false", name)
    return value


def refuse_unsupported(fields: Mapping[str, Any], known: Iterable[str], neutral: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of ignored fields; a 400 for one that could change the answer and is not supported.

    neutral: fields that are not supported, with the values that ask for nothing.
    """
    ignored = []
    known = set(known)
    for name, value in fields.items():
        if name in known:
            continue
        if name in IGNORED:
            ignored.append(name)
        elif name in neutral:
            if not any(value == nothing and type(value) is type(nothing) for nothing in neutral[name]):
                raise unsupported(name)
        else:
            raise unsupported(name)
    return tuple(ignored)


def unsupported(name: str) -> RequestError:
    """A 400 for a field that would change the answer."""
    shown = name if len(name) <= 64 and name.isprintable() else "(an unprintable name)"
    return RequestError(Kind.UNSUPPORTED_FIELD, f"{shown} is not supported here; leave it out or null", param=shown)


def _range(low: float, high: float | None) -> str:
    return f"at least {low}" if high is None else f"from {low} to {high}"
