"""Which route a request takes: host first, then path. Pure.

Owns the order of matching: an exact host before the longest wildcard before any host; within a host an exact path
before the longest prefix. A host that has no route for the path leaves the request to the next host in that order.
``/v1/*`` also takes ``/v1``: a rule that guards what lies below a path guards the path. The order of the routes in the
configuration never matters; equal matches are refused by ``proxy.config_routes``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from proxy.chain import Chain

if TYPE_CHECKING:
    from proxy.config_routes import Route as RouteConfig

Api = Literal["openai", "oip", "none"]


@dataclass(slots=True, frozen=True, eq=False)
class Route:
    """A route as requests use it. name: for logs, metrics and carried-over state. upstream: "engine" or a key of
    ``upstreams``. index: its place in the configuration."""

    name: str
    index: int
    host: str | None
    path: str
    upstream: str
    api: Api
    chain: Chain
    config: RouteConfig


class _Paths:
    """The routes of one host."""

    __slots__ = ("_exact", "_lengths", "_prefixes")

    def __init__(self) -> None:
        self._exact: dict[str, Route] = {}
        self._prefixes: dict[str, Route] = {}
        self._lengths: list[int] = []  # of the prefixes, longest first: the work is bounded by the configuration

    def add(self, route: Route) -> None:
        if route.path.endswith("/*"):
            self._prefixes.setdefault(route.path[:-2], route)
            self._lengths = sorted({len(prefix) for prefix in self._prefixes}, reverse=True)
        else:
            self._exact.setdefault(route.path, route)

    def match(self, path: str) -> Route | None:
        found = self._exact.get(path)
        if found is not None:
            return found
        size = len(path)
        for length in self._lengths:
            if length == size or (length < size and path[length] == "/"):
                found = self._prefixes.get(path[:length])
                if found is not None:
                    return found
        return None


class Router:
    """All routes of a snapshot."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, _Paths] = {}
        self._wildcards: dict[str, _Paths] = {}  # ".example.com": every name below it
        self._any = _Paths()
        for route in self.routes:
            if route.host is None:
                self._any.add(route)
            elif route.host.startswith("*."):
                self._wildcards.setdefault(route.host[1:].lower(), _Paths()).add(route)
            else:
                self._exact.setdefault(route.host.lower(), _Paths()).add(route)
        self._suffixes = sorted(self._wildcards, key=len, reverse=True)

    def match(self, host: str, path: str) -> Route | None:
        """The route for a lower-case host without port and a normalised path, or None."""
        paths = self._exact.get(host)
        if paths is not None and (found := paths.match(path)) is not None:
            return found
        for suffix in self._suffixes:
            if host.endswith(suffix) and (found := self._wildcards[suffix].match(path)) is not None:
                return found
        return self._any.match(path)
