"""Which route a request takes: host first, then path, then conditions. Pure.

Owns the order of matching. Routes of a higher ``priority`` come before all others. Among equals an exact host is before
the longest wildcard, and that before any host; within a host paths are compared segment by segment from the left: text
before a placeholder, a placeholder before ``/*``, so that an exact path is before the longest prefix and no placeholder
passes by what a longer text guards; at one path more conditions are before fewer. A route whose conditions fail leaves
the request to the next one in that order, and so does a host without a route for the path. ``/v1/*`` also takes
``/v1``: a rule that guards what lies below a path guards the path. The order of the routes in the configuration never
matters; what could be equal is refused by ``proxy.config_routes``.

Without priorities and placeholders it costs two look-ups; otherwise no part of a path is looked at twice in one host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Literal

from proxy.chain import Chain
from proxy.conditions import Conditions
from proxy.exchange import Exchange, Reply
from proxy.patterns import Pattern, Segment, may_stand, parse_pattern

if TYPE_CHECKING:
    from proxy.config_routes import Route as RouteConfig

Api = Literal["openai", "oip", "engine", "none"]  # of errors; engine: openai, and oip under /v2


ESCAPED_SLASH: Final = "the path contains an escaped slash, which is not taken here"


class Route:
    """A route as requests use it. name: for logs, metrics and carried-over state. upstream: "engine", a key of
    ``upstreams``, or "" for a route that answers itself. index: its place in the configuration. answer: makes the
    redirect or the fixed response. rewrite: changes ``send_path`` and ``query`` of a request that goes upstream, once.

    Written out, because a compiled dataclass looks its types up at run time, where ``config_routes`` is not there yet.
    """

    __slots__ = ("answer", "api", "chain", "conditions", "config", "encoded_slash", "host", "index", "name", "path",
                 "priority", "rewrite", "upstream")  # fmt: skip

    def __init__(
        self,
        name: str,
        index: int,
        host: str | None,
        path: str,
        upstream: str,
        api: Api,
        chain: Chain,
        config: RouteConfig,
        conditions: Conditions | None = None,
        priority: int = 0,
        answer: Callable[[Exchange], Reply] | None = None,
        rewrite: Callable[[Exchange], None] | None = None,
        encoded_slash: bool = False,
    ) -> None:
        self.name = name
        self.index = index
        self.host = host
        self.path = path
        self.upstream = upstream
        self.api: Api = api
        self.chain = chain
        self.config = config
        self.conditions = conditions
        self.priority = priority
        self.answer = answer
        self.rewrite = rewrite
        self.encoded_slash = encoded_slash  # takes paths with %2F, which others refuse


#: Routes that differ in their conditions only, those with more of them first.
_Stack = tuple[Route, ...]


def _put(stack: _Stack, route: Route) -> _Stack:
    return tuple(sorted((*stack, route), key=_by_conditions))


def _by_conditions(route: Route) -> tuple[int, bool, int]:
    """Most first; of those that differ in methods, who names OPTIONS has the preflights; then the configuration's."""
    conditions = route.conditions
    return (-conditions.count, not conditions.takes_options, route.index) if conditions else (0, True, route.index)


def _first(stack: _Stack, x: Exchange) -> Route | None:
    for route in stack:
        conditions = route.conditions
        if conditions is None or conditions.hold(x):
            return route
    return None


class _Node:
    """A place in the tree of a host's patterns: each is reached by one way only, so a search visits it once."""

    __slots__ = ("affixed", "here", "open", "tail", "texts")

    def __init__(self) -> None:
        self.texts: dict[str, _Node] = {}
        self.affixed: list[tuple[Segment, _Node]] = []  # the longest texts first; of equal length no two can fit
        self.open: _Node | None = None  # a placeholder for the whole segment
        self.here: _Stack = ()
        self.tail: _Stack = ()

    def add(self, pattern: Pattern, route: Route) -> None:
        node = self
        for segment in pattern.segments:
            node = node._next(segment)
        if pattern.tail:
            node.tail = _put(node.tail, route)
        else:
            node.here = _put(node.here, route)

    def _next(self, segment: Segment) -> _Node:
        if not segment.name:
            return self.texts.setdefault(segment.before, _Node())
        if not (segment.before or segment.after):
            self.open = self.open or _Node()
            return self.open
        for known, node in self.affixed:
            if (known.before, known.after) == (segment.before, segment.after):
                return node
        node = _Node()
        self.affixed.append((segment, node))
        self.affixed.sort(key=lambda pair: (-len(pair[0].before), -len(pair[0].after)))
        return node

    def find(self, parts: list[str], depth: int, x: Exchange) -> Route | None:
        """The route for the segments from ``depth`` on."""
        if depth == len(parts):
            return _first(self.here, x) or _first(self.tail, x)
        part = parts[depth]
        node = self.texts.get(part)
        if node is not None and (found := node.find(parts, depth + 1, x)) is not None:
            return found
        for segment, node in self.affixed:
            before, after = segment.before, segment.after
            if (
                len(part) > len(before) + len(after)
                and part.startswith(before)
                and part.endswith(after)
                and may_stand(part[len(before) : len(part) - len(after)])
                and (found := node.find(parts, depth + 1, x)) is not None
            ):
                return found
        node = self.open
        if node is not None and may_stand(part) and (found := node.find(parts, depth + 1, x)) is not None:
            return found
        return _first(self.tail, x)


class _Paths:
    """The routes of one host."""

    __slots__ = ("_exact", "_lengths", "_prefixes", "_stacks", "_tree")

    def __init__(self) -> None:
        self._exact: dict[str, Route] = {}  # the first of each path's stack, which most often is all of it
        self._prefixes: dict[str, Route] = {}
        self._stacks: dict[str, _Stack] = {}  # of both; of prefixes with their tail
        self._lengths: list[int] = []  # of the prefixes, longest first: the work is bounded by the configuration
        self._tree: _Node | None = None  # instead of the prefixes, once there is a placeholder

    def add(self, routes: Iterable[tuple[Pattern, Route]]) -> None:
        """All routes of the host, at once."""
        routes = list(routes)
        tree = _Node() if any(pattern.plain is None for pattern, _ in routes) else None
        self._tree = tree
        for pattern, route in routes:
            plain = pattern.plain
            if plain is not None and not pattern.tail:
                self._stacks[plain] = stack = _put(self._stacks.get(plain, ()), route)
                self._exact[plain] = stack[0]
            elif tree is not None:
                tree.add(pattern, route)
            elif plain is not None:
                self._stacks[f"{plain}/*"] = stack = _put(self._stacks.get(f"{plain}/*", ()), route)
                self._prefixes[plain] = stack[0]
        self._lengths = sorted({len(prefix) for prefix in self._prefixes}, reverse=True)

    def find(self, path: str, x: Exchange) -> Route | None:
        found = self._exact.get(path)
        if found is not None and (found.conditions is None or (found := _first(self._stacks[path], x)) is not None):
            return found
        if self._tree is not None:
            return self._tree.find(path.split("/")[1:], 0, x)
        size = len(path)
        for length in self._lengths:
            if length == size or (length < size and path[length] == "/"):
                prefix = path[:length]
                found = self._prefixes.get(prefix)
                if found is not None and (
                    found.conditions is None or (found := _first(self._stacks[f"{prefix}/*"], x)) is not None
                ):
                    return found
        return None


class _Hosts:
    """The routes of one priority."""

    __slots__ = ("any", "exact", "suffixes", "wildcards")

    def __init__(self, routes: Iterable[Route]) -> None:
        by_host: dict[str | None, list[tuple[Pattern, Route]]] = {}
        for route in routes:
            host = route.host.lower() if route.host is not None else None
            by_host.setdefault(host, []).append((parse_pattern(route.path), route))
        self.exact: dict[str, _Paths] = {}
        self.wildcards: dict[str, _Paths] = {}  # ".example.com": every name below it
        self.any = _Paths()
        for host, found in by_host.items():
            paths = _Paths() if host is not None else self.any
            paths.add(found)
            if host is not None and host.startswith("*."):
                self.wildcards[host[1:]] = paths
            elif host is not None:
                self.exact[host] = paths
        self.suffixes = sorted(self.wildcards, key=len, reverse=True)


class Router:
    """All routes of a snapshot."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self.encoded_slash = any(route.encoded_slash for route in self.routes)
        priorities = sorted({route.priority for route in self.routes}, reverse=True)
        self._layers = tuple(
            _Hosts(route for route in self.routes if route.priority == priority) for priority in priorities
        )
        self._by_method = tuple(
            (parse_pattern(route.path), route.conditions, route)
            for route in self.routes
            if route.conditions is not None and route.conditions.methods
        )

    def find(self, x: Exchange) -> Route | None:
        """The route of a request, or None. Its host is lower-case and without port, its path normalised."""
        host, path = x.host, x.path
        for hosts in self._layers:
            paths = hosts.exact.get(host)
            if paths is not None and (found := paths.find(path, x)) is not None:
                return found
            for suffix in hosts.suffixes:
                if host.endswith(suffix) and (found := hosts.wildcards[suffix].find(path, x)) is not None:
                    return found
            if (found := hosts.any.find(path, x)) is not None:
                return found
        return None

    def is_plain(self, x: Exchange, route: Route) -> bool:
        """Whether the path can be read in one way only: it has no ``%2F``, or the route allows one and whoever takes it
        for a slash comes to no other route."""
        if "%2F" not in x.path:
            return True
        if not route.encoded_slash:
            return False
        path = x.path
        x.path = path.replace("%2F", "/")
        other = self.find(x)
        x.path = path
        return other is None or other is route

    def allowed(self, x: Exchange) -> tuple[str, ...]:
        """The methods with which a route would take a request that none takes, for 405 and Allow; (): none would."""
        methods: set[str] = set()
        for pattern, conditions, route in self._by_method:
            if fits_host(route.host, x.host) and pattern.matches(x.path) and conditions.hold_besides_method(x):
                methods |= conditions.methods
        return tuple(sorted(methods))


def fits_host(wanted: str | None, host: str) -> bool:
    """Whether a lower-case host is the one that a route wants: itself, a name below a wildcard, or any."""
    if wanted is None:
        return True
    wanted = wanted.lower()
    return host.endswith(wanted[1:]) if wanted.startswith("*.") else host == wanted


def host_rank(wanted: str | None) -> int:
    """How much a route says of the host: an exact name, a wildcard by its length, or nothing."""
    if wanted is None:
        return 0
    return len(wanted) if wanted.startswith("*.") else 1000
