"""What a route asks of a request beyond host and path: method, header fields, query parameters. Pure.

A field that stands in several lines has their values joined by a comma (RFC 9110 §5.3). Of a parameter given more than
once every value must fit, because servers differ in which of them they read; names and values are compared decoded. A
CORS preflight is taken as the method that it asks for, so that it goes where the request itself will go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from proxy.exchange import Exchange, RawHeaders

if TYPE_CHECKING:
    from proxy.config_match import Condition, Match

_TELLING: Final = re.compile("authori[sz]ation|cookie|key|token|secret|password|credential|signature", re.IGNORECASE)


class Value:
    """One condition on a value, or on there being one. exact and parts are None where it is not about the text."""

    __slots__ = ("_parts", "exact", "name", "present")

    def __init__(self, name: bytes, condition: Condition) -> None:
        self.name = name
        self.exact: bytes | None = None
        self.present: bool | None = None
        self._parts: list[bytes] | None = None
        if isinstance(condition, str):
            self.exact = condition.encode()
        elif condition.like is not None:
            self._parts = condition.like.encode().split(b"*")
        else:
            self.present = condition.present

    def holds(self, value: bytes | None) -> bool:
        """Whether a value fits; None: it is not there."""
        if self.present is not None:
            return (value is not None) is self.present
        if value is None:
            return False
        return value == self.exact if self.exact is not None else self._like(value)

    def _like(self, value: bytes) -> bool:
        """Each part as early as it can stand: one pass, and never a way back."""
        assert self._parts is not None
        first, *middle = self._parts
        if not middle:
            return value == first
        last = middle.pop()
        if len(value) < len(first) + len(last) or not value.startswith(first) or not value.endswith(last):
            return False
        at, end = len(first), len(value) - len(last)
        for part in middle:
            at = value.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True

    def excludes(self, other: Value) -> bool:
        """Whether nothing fits both, as far as their texts tell."""
        for one, two in ((self, other), (other, self)):
            if one.present is False and two.present is not False:
                return True
            if one.exact is not None and not two.holds(one.exact):
                return True
        return False

    @property
    def expected(self) -> str:
        """The condition in words, after the name; the value of a name that tells of a secret is not shown."""
        if self.present is not None:
            return "present" if self.present else "absent"
        shown = b"*".join(self._parts) if self._parts is not None else self.exact or b""
        text = "***" if _TELLING.search(self.name.decode()) else shown.decode()
        return f"like {text!r}" if self._parts is not None else repr(text)


class Conditions:
    """All conditions of one route; ``None`` in a route that has none, so that it costs nothing."""

    __slots__ = ("_headers", "_query", "count", "methods", "takes_options")

    def __init__(
        self, methods: Iterable[str], headers: Mapping[str, Condition], query: Mapping[str, Condition]
    ) -> None:
        named = frozenset(methods)
        self.methods = named | {"HEAD"} if "GET" in named else named
        self.takes_options = "OPTIONS" in named
        self._headers = tuple(Value(name.lower().encode(), each) for name, each in headers.items())
        self._query = tuple(Value(name.encode(), each) for name, each in query.items())
        self.count = bool(named) + len(self._headers) + len(self._query)

    def hold(self, x: Exchange) -> bool:
        """Whether the request fits all of them."""
        return (not self.methods or self.fits_method(x)) and self.hold_besides_method(x)

    def fits_method(self, x: Exchange) -> bool:
        """Whether the method is one of those named, or a preflight asks for one."""
        return x.method in self.methods or (
            x.method == "OPTIONS" and x.fields.get("Access-Control-Request-Method", "").strip() in self.methods
        )

    def hold_besides_method(self, x: Exchange) -> bool:
        """Whether the request would fit with another method."""
        for each in self._headers:
            if not each.holds(field_value(x.headers, each.name)):
                return False
        if self._query:
            given = parameters(x.query)
            for each in self._query:
                if not all(each.holds(value) for value in given.get(each.name, (None,))):
                    return False
        return True

    def first_failing(self, x: Exchange) -> str | None:
        """Which condition the request does not fit, in words; None if it fits all."""
        if self.methods and not self.fits_method(x):
            return f"the method is not {' or '.join(sorted(self.methods))}"
        for each in self._headers:
            if not each.holds(field_value(x.headers, each.name)):
                return f"the header {each.name.decode()} is not {each.expected}"
        given = parameters(x.query)
        for each in self._query:
            if not all(each.holds(value) for value in given.get(each.name, (None,))):
                return f"the query parameter {each.name.decode()} is not {each.expected}"
        return None

    def described(self) -> list[str]:
        """Each condition in words."""
        words = [f"method is {' or '.join(sorted(self.methods))}"] if self.methods else []
        words += [f"header {each.name.decode()} is {each.expected}" for each in self._headers]
        return words + [f"query parameter {each.name.decode()} is {each.expected}" for each in self._query]

    def excludes(self, other: Conditions) -> bool:
        """Whether no request fits both, as far as can be told from the conditions alone."""
        if self.methods and other.methods and not self.methods & other.methods:
            return True
        pairs = [(a, b) for a in self._headers for b in other._headers]
        pairs += [(a, b) for a in self._query for b in other._query]
        return any(a.name == b.name and a.excludes(b) for a, b in pairs)


def conditions_of(match: Match) -> Conditions | None:
    """The conditions of a route's ``match``, None if there are none."""
    found = Conditions(match.methods, match.headers, match.query)
    return found if found.count else None


def field_value(headers: RawHeaders, name: bytes) -> bytes | None:
    """The value of the field ``name`` (lower case), its lines joined; None if there is none."""
    size = len(name)
    lines = [value for key, value in headers if len(key) == size and key.lower() == name]
    return b", ".join(lines) if lines else None


def parameters(query: str) -> dict[bytes, list[bytes | None]]:
    """The parameters of a raw query, decoded as forms are."""
    found: dict[bytes, list[bytes | None]] = {}
    for pair in query.split("&"):
        if pair:
            name, _, value = pair.partition("=")
            found.setdefault(decoded(name), []).append(decoded(value))
    return found


def decoded(text: str) -> bytes:
    """``a+b%2Bc`` -> ``a b+c``."""
    if "+" not in text and "%" not in text:
        return text.encode("utf-8", "surrogateescape")
    return unquote_to_bytes(text.replace("+", " ").encode("utf-8", "surrogateescape"))
