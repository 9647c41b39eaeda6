"""Which endpoint a path means.

A pattern has names in braces, each for one segment: ``/v2/models/{model}/infer``; ``{model:.+}`` for all that is left.
The first route that fits wins. Segments are told apart before they are decoded, so %2F is part of a name. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from engine.http.message import Request, Response
from engine.http.stream import Stream

Handler = Callable[[Request], Awaitable[Response | Stream]]

_REMEMBERED: Final = 1024  # paths, each of so many characters at most:
_REMEMBERED_CHARACTERS: Final = 256
_PARTS: Final = re.compile(r"\{(\w+)(:\.\+)?\}")


class Route(NamedTuple):
    """An endpoint and where it is."""

    method: str
    pattern: str
    handler: Handler


class Found(NamedTuple):
    """What a path means to a method; handler None: only other methods are taken here, if any."""

    handler: Handler | None
    names: Mapping[str, str]
    allowed: tuple[str, ...] = ()


def get(pattern: str, handler: Handler) -> Route:
    """For GET, and for HEAD, whose answer is the same without a body."""
    return Route("GET", pattern, handler)


def post(pattern: str, handler: Handler) -> Route:
    """For POST."""
    return Route("POST", pattern, handler)


class Router:
    """All routes."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = [(_compile(route.pattern), route) for route in routes]
        self._memo: dict[tuple[str, str], Found] = {}

    def find(self, method: str, path: str) -> Found:
        """path: as it was sent, without the query."""
        key = (method, path)
        found = self._memo.get(key)
        if found is None:
            found = self._find("GET" if method == "HEAD" else method, path)
            if found.handler is not None and len(path) <= _REMEMBERED_CHARACTERS:
                if len(self._memo) >= _REMEMBERED:
                    self._memo.clear()
                self._memo[key] = found
        return found

    def _find(self, method: str, path: str) -> Found:
        allowed: set[str] = set()
        for pattern, route in self._routes:
            if (match := pattern.fullmatch(path)) is not None:
                if route.method == method:
                    return Found(route.handler, {name: unquote(text) for name, text in match.groupdict().items()})
                allowed |= {"GET", "HEAD"} if route.method == "GET" else {route.method}
        return Found(None, {}, tuple(sorted(allowed)))


def _compile(pattern: str) -> re.Pattern[str]:
    expression, at = "", 0
    for part in _PARTS.finditer(pattern):
        expression += re.escape(pattern[at : part.start()]) + f"(?P<{part[1]}>{'.+' if part[2] else '[^/]+'})"
        at = part.end()
    return re.compile(expression + re.escape(pattern[at:]))
