"""Routes, and the proxy's configuration as a whole.

Owns what one table alone cannot say: that names refer to something, that matches and addresses differ, and which
limits need one count for the whole box. ``Route.policies`` is made from ``proxy.policy.POLICIES``. Problems are told
with their place, so that the appliance can name the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import Field

from proxy.config import Defaults, Limit, Listener, Match, Retry, Table, Timeouts, Upstream
from proxy.policy import POLICIES, PolicySet
from proxy.route import Api

ENGINE = "engine"

#: Where a problem is, as pydantic tells it: keys and indexes from the top.
Loc = tuple[str | int, ...]
Problem = tuple[Loc, str]


class Route(Table):
    """What a request that matches is sent to, and under which policies."""

    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None  # for logs; None: host and path
    match: Match = Match()
    to: Annotated[str, Field(min_length=1)]  # "engine" or a key of upstreams
    api: Literal["openai", "oip", "none"] | None = None  # shape of errors; None: openai for engine and kind: openai
    policies: PolicySet = PolicySet()
    timeouts: Timeouts | None = None  # None: the upstream's
    retry: Retry | None = None  # None: the upstream's

    @property
    def label(self) -> str:
        """The route's name: as given, or its host and path."""
        return self.name or f"{self.match.host or '*'}{self.match.path}"


class ProxyConfig(Table):
    """All that a proxy worker is built from, besides materials and sockets."""

    listeners: Annotated[tuple[Listener, ...], Field(min_length=1)]
    upstreams: dict[str, Upstream] = Field(default_factory=dict)
    limits: dict[str, Limit] = Field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    defaults: Defaults = Defaults()
    engine_socket: str | None = None  # unix socket of the local engine; None: there is none


def api_of(route: Route, upstreams: Mapping[str, Upstream]) -> Api:
    """The route's error shape: as configured, else openai for the engine and for upstreams of that kind."""
    if route.api is not None:
        return route.api
    upstream = upstreams.get(route.to)
    speaks_openai = route.to == ENGINE or (upstream is not None and upstream.kind == "openai")
    return "openai" if speaks_openai else "none"


def cross_check(config: ProxyConfig, *, engine: bool | None = None) -> list[Problem]:
    """Every problem between tables, each with its place. Empty: the configuration holds together.

    engine: whether there is a local engine; None: judged by ``engine_socket``.
    """
    has_engine = config.engine_socket is not None if engine is None else engine
    return [
        *_check_listeners(config.listeners),
        *_check_upstreams(config.upstreams),
        *_check_targets(config, has_engine),
        *_check_limits(config),
        *_check_matches(config.routes),
    ]


def needs_shared_state(config: ProxyConfig) -> list[Loc]:
    """The policies that count across requests, by place. While counts live in one process, they allow one worker."""
    return [
        ("routes", i, "policies", module.NAME)
        for i, route in enumerate(config.routes)
        for module in POLICIES
        if module.SHARED and getattr(route.policies, module.NAME) is not None
    ]


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that refers to nothing, with the nearest one that would."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    if near:
        return f"there is no {what} named {name!r}; did you mean {near[0]!r}?"
    return f"there is no {what} named {name!r}; known: {', '.join(names) or 'none'}"


def _check_listeners(listeners: tuple[Listener, ...]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for i, listener in enumerate(listeners):
        first = seen.setdefault(listener.address, i)
        if first != i:
            yield ("listeners", i, "address"), f"{listener.address} is also the address of listeners[{first}]"
        if listener.tls is not None and listener.redirect is not None:
            yield ("listeners", i, "redirect"), "a listener with tls is https already; remove redirect or tls"


def _check_upstreams(upstreams: Mapping[str, Upstream]) -> Iterator[Problem]:
    for name, upstream in upstreams.items():
        if name == ENGINE:
            yield ("upstreams", name), "the name engine means the local engine; choose another"
        urls = [server.url for server in upstream.servers]
        doubles = sorted({url for url in urls if urls.count(url) > 1})
        if doubles:
            yield ("upstreams", name, "servers"), f"{doubles[0]} is listed twice"
        if not any(server.weight for server in upstream.servers):
            yield ("upstreams", name, "servers"), "every weight is 0, so that none takes a request; give one a weight"
        if upstream.breaker.max_open < upstream.breaker.open:
            yield ("upstreams", name, "breaker", "max_open"), "is shorter than open; it bounds the doubling of open"


def _check_targets(config: ProxyConfig, has_engine: bool) -> Iterator[Problem]:
    for i, route in enumerate(config.routes):
        if route.to == ENGINE:
            if not has_engine:
                yield ("routes", i, "to"), "there is no engine: no models are configured"
        elif route.to not in config.upstreams:
            yield ("routes", i, "to"), unknown("upstream", route.to, {*config.upstreams, ENGINE})


def _check_limits(config: ProxyConfig) -> Iterator[Problem]:
    for i, route in enumerate(config.routes):
        policies = route.policies
        authenticated = getattr(policies, "auth", None) is not None
        for j, name in enumerate(getattr(policies, "rate_limit", None) or ()):
            place = ("routes", i, "policies", "rate_limit", j)
            limit = config.limits.get(name)
            if limit is None:
                yield place, unknown("limit", name, config.limits)
            elif limit.key == "api_key" and not authenticated:
                yield place, f"the limit {name!r} counts per api_key, but this route has no auth policy"
        in_flight = getattr(policies, "in_flight", None)
        if in_flight is not None and in_flight.key == "api_key" and not authenticated:
            yield ("routes", i, "policies", "in_flight", "key"), "counts per api_key, but this route has no auth policy"


def _check_matches(routes: tuple[Route, ...]) -> Iterator[Problem]:
    seen: dict[tuple[str | None, str], int] = {}
    labels: dict[str, int] = {}
    for i, route in enumerate(routes):
        host = route.match.host.lower() if route.match.host is not None else None
        first = seen.setdefault((host, route.match.path), i)
        if first != i:
            yield ("routes", i, "match"), f"the same host and path as routes[{first}]; which one is meant?"
        elif labels.setdefault(route.label, i) != i:
            yield ("routes", i, "name"), f"{route.label!r} is also the name of routes[{labels[route.label]}]"
