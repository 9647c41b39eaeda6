"""Routes, and the proxy's configuration as a whole.

Owns what one table alone cannot say: that names refer to something, and that matches and addresses differ.
``Route.policies`` is made from ``proxy.policy.POLICIES``. Problems are told with their place, so that the appliance can
name the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import Field, model_validator

from proxy.answers import Redirector, Responder
from proxy.chain import Chain
from proxy.conditions import Conditions, conditions_of
from proxy.config import Defaults, Limit, Listener, Retry, Table, Timeouts, Upstream
from proxy.config_budgets import Budget, Usage
from proxy.config_match import Match, Redirect, Respond, Rewrite
from proxy.config_models import ModelRoute, RouteTarget, Tokenizer, ToModels
from proxy.config_variants import Config as Variants
from proxy.config_variants import Variant
from proxy.patterns import parse_pattern
from proxy.policy import PolicySet
from proxy.rewrite import Rewriter
from proxy.route import Api
from proxy.route import Route as BuiltRoute
from proxy.units import Duration

ENGINE = "engine"

#: Where a problem is, as pydantic tells it: keys and indexes from the top.
Loc = tuple[str | int, ...]
Problem = tuple[Loc, str]


class WebSocket(Table):
    """Requests for WebSocket are tunnelled. Others that ask for another protocol are served without it."""

    idle: Annotated[Duration, Field(gt=0)] = 600.0  # no byte either way: closed


class Route(Table):
    """What a request that matches is sent to or answered with (one of to, redirect, respond), under which policies."""

    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None  # for logs; None: host and path
    match: Match = Match.model_validate({})
    to: RouteTarget | None = None  # "engine", a key of upstreams, or {models: [...]}
    redirect: Redirect | None = None
    respond: Respond | None = None
    rewrite: Rewrite | None = None  # of what is sent to the upstream
    encoded_slash: Literal["refuse", "allow"] = "refuse"  # %2F in a path -> 400, or part of its segment
    api: Literal["openai", "oip", "none"] | None = None  # shape of errors; None: see api_of
    policies: PolicySet = PolicySet()
    timeouts: Timeouts | None = None  # None: the upstream's
    retry: Retry | None = None  # None: the upstream's
    ping: Annotated[Duration, Field(gt=0)] | None = None  # a comment on a stream quiet for so long; None: never
    websocket: WebSocket | None = None  # None: not tunnelled

    @model_validator(mode="after")
    def _one_action(self) -> Route:
        if [self.to, self.redirect, self.respond].count(None) != 2:
            raise ValueError("expected exactly one of `to: UPSTREAM`, `redirect: {to: URL}` and `respond: {status: N}`")
        if self.rewrite is not None and self.to is None:
            raise ValueError("rewrite changes what an upstream receives, but this route has no `to`")
        for key, value in (("ping", self.ping), ("websocket", self.websocket)):
            if value is not None and self.to is None:
                raise ValueError(f"{key} is about what an upstream sends, but this route has no `to`")
        return self

    @property
    def models(self) -> ToModels | None:
        """What decides by the model that a request names; None if the route has one upstream, or none."""
        return self.to if isinstance(self.to, ToModels) else None

    @property
    def upstream(self) -> str | None:
        """The one upstream of the route; None if it has none, or several by model."""
        return self.to if isinstance(self.to, str) else None

    @property
    def label(self) -> str:
        """The route's name: as given, or its methods, host, path, and what else it looks at."""
        match = self.match
        methods = f"{','.join(match.methods)} " if match.methods else ""
        names = "".join(f" {name}" for name in (*match.headers, *match.query))
        return self.name or f"{methods}{match.host or '*'}{match.path}{names}"


class ProxyConfig(Table):
    """All that a proxy worker is built from, besides materials and sockets."""

    listeners: Annotated[tuple[Listener, ...], Field(min_length=1)]
    upstreams: dict[str, Upstream] = Field(default_factory=dict)
    limits: dict[str, Limit] = Field(default_factory=dict)
    budgets: dict[str, Budget] = Field(default_factory=dict)
    usage: Usage | None = None
    model_routes: dict[str, ModelRoute] = Field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    defaults: Defaults = Defaults()
    engine_socket: str | None = None  # unix socket of the local engine; None: there is none
    engine_contexts: dict[str, int] = Field(default_factory=dict)  # tokens of its chat models, by name
    engine_tokenizers: dict[str, Tokenizer] = Field(default_factory=dict)  # of its models, by name

    def targets_of(self, route: Route) -> tuple[str, ...]:
        """The upstreams that may serve a route. Names that refer to nothing are left out."""
        if route.models is None:
            own = (route.upstream, *(each.to for each in self.variants_of(route))) if route.upstream is not None else ()
            return tuple(dict.fromkeys(to for to in own if to is not None))
        tables = [self.model_routes[name] for name in self.models_of(route)]
        return tuple(dict.fromkeys(target.to for table in tables for target in table.upstreams))

    def models_of(self, route: Route) -> tuple[str, ...]:
        """The model routes that a route may come to: its own and its variants', their fallbacks and lighter ones."""
        served = (*route.models.models, *self.variant_models(route)) if route.models is not None else ()
        tables = [self.model_routes[name] for name in served if name in self.model_routes]
        others = [other for table in tables for other in (*table.fallback, table.degrade_to) if other is not None]
        return tuple(name for name in dict.fromkeys((*served, *others)) if name in self.model_routes)

    @staticmethod
    def variants_of(route: Route) -> tuple[Variant, ...]:
        """What is tried on the route's users."""
        variants: Variants | None = getattr(route.policies, "variants", None)
        return tuple(variants.of.values()) if variants is not None else ()

    def variant_models(self, route: Route) -> tuple[str, ...]:
        """The model routes that only its variants go to, of a route by models."""
        return tuple(dict.fromkeys(each.model for each in self.variants_of(route) if each.model is not None))


def api_of(route: Route, upstreams: Mapping[str, Upstream]) -> Api:
    """The route's error shape: as configured, else the engine's own, else openai for models and upstreams of that
    kind."""
    if route.api is not None:
        return route.api
    if route.models is not None:
        return "openai"
    if route.upstream == ENGINE:
        return "engine"
    upstream = upstreams.get(route.upstream or "")
    return "openai" if upstream is not None and upstream.kind == "openai" else "none"


def route_of(table: Route, index: int, config: ProxyConfig, chain: Chain) -> BuiltRoute:
    """The route as requests use it. Raises ValueError where ``cross_check`` finds a problem."""
    match, rewriter, redirector = table.match, _rewriter(table), _redirector(table)
    answer = redirector.answer if redirector is not None else None
    if table.respond is not None:
        answer = Responder(table.respond).answer
    return BuiltRoute(
        table.label,
        index,
        match.host,
        match.path,
        next(iter(config.targets_of(table)), ""),
        api_of(table, config.upstreams),
        chain,
        table,
        conditions_of(match),
        match.priority,
        answer,
        rewriter.apply if rewriter is not None else None,
        table.encoded_slash == "allow",
    )


def cross_check(config: ProxyConfig, *, engine: bool | None = None) -> list[Problem]:
    """Every problem between tables, each with its place. Empty: the configuration holds together.

    engine: whether there is a local engine; None: judged by ``engine_socket``.
    """
    has_engine = config.engine_socket is not None if engine is None else engine
    return [
        *_check_listeners(config.listeners),
        *_check_upstreams(config.upstreams),
        *_check_targets(config, has_engine),
        *_check_models(config, has_engine),
        *_check_limits(config),
        *_check_variants(config, has_engine),
        *_check_budgets(config),
        *_check_matches(config.routes),
        *_check_actions(config.routes),
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
        if route.upstream is not None:
            yield from _check_target(("routes", i, "to"), route.upstream, config, has_engine)
        if route.models is None:
            continue
        for j, name in enumerate(route.models.models):
            if name not in config.model_routes:
                yield ("routes", i, "to", "models", j), unknown("model route", name, config.model_routes)
        if route.models.default is not None and route.models.default not in route.models.models:
            yield (
                ("routes", i, "to", "default"),
                unknown("model of this route", route.models.default, route.models.models),
            )
        if route.websocket is not None:
            yield ("routes", i, "websocket"), "models are named in a body, which a request for WebSocket has not"


def _check_target(loc: Loc, name: str, config: ProxyConfig, has_engine: bool) -> Iterator[Problem]:
    if name == ENGINE:
        if not has_engine:
            yield loc, "there is no engine: no models are configured"
    elif name not in config.upstreams:
        yield loc, unknown("upstream", name, {*config.upstreams, ENGINE})


def _check_models(config: ProxyConfig, has_engine: bool) -> Iterator[Problem]:
    owners: dict[str, str] = {name: name for name in config.model_routes}
    for name, table in config.model_routes.items():
        loc: Loc = ("model_routes", name)
        for i, target in enumerate(table.upstreams):
            yield from _check_target((*loc, "upstreams", i, "to"), target.to, config, has_engine)
        for i, alias in enumerate(table.aliases):
            owner = owners.setdefault(alias, name)
            if owner != name or alias == name:
                yield (*loc, "aliases", i), f"{alias!r} already means the model route {owner}"
        for i, other in enumerate(table.fallback):
            if other == name or other not in config.model_routes:
                yield (*loc, "fallback", i), _not_another(other, name, config)
        for i, limit in enumerate(table.limits):
            if limit not in config.limits:
                yield (*loc, "limits", i), unknown("limit", limit, config.limits)
        lighter = table.degrade_to
        if lighter is not None and (lighter == name or lighter not in config.model_routes):
            yield (*loc, "degrade_to"), _not_another(lighter, name, config)


def _not_another(other: str, name: str, config: ProxyConfig) -> str:
    return (
        f"{other!r} is this model route itself" if other == name else unknown("model route", other, config.model_routes)
    )


def _check_limits(config: ProxyConfig) -> Iterator[Problem]:
    for i, route in enumerate(config.routes):
        policies = route.policies
        authenticated = any(getattr(policies, name, None) is not None for name in ("auth", "basic_auth"))
        for j, name in enumerate(getattr(policies, "rate_limit", None) or ()):
            place = ("routes", i, "policies", "rate_limit", j)
            limit = config.limits.get(name)
            if limit is None:
                yield place, unknown("limit", name, config.limits)
            else:
                yield from _check_limit(name, place, route, config)
        for model in (*route.models.models, *config.variant_models(route)) if route.models is not None else ():
            table = config.model_routes.get(model)
            for name in table.limits if table is not None else ():
                if name in config.limits:
                    yield from _check_limit(name, ("model_routes", model, "limits"), route, config)
        in_flight = getattr(policies, "in_flight", None)
        if in_flight is not None and in_flight.key == "api_key" and not authenticated:
            message = "counts per api_key, but this route has neither auth nor basic_auth"
            yield ("routes", i, "policies", "in_flight", "key"), message


def _check_limit(name: str, place: Loc, route: Route, config: ProxyConfig) -> Iterator[Problem]:
    """Whether a route can count what a limit limits."""
    limit, policies = config.limits[name], route.policies
    whose = "this route" if place[0] == "routes" else f"the route {route.label!r}"
    if limit.tokens is not None and getattr(policies, "tokens", None) is None:
        yield place, f"the limit {name!r} counts tokens, {whose} none; give it the policy `tokens: {{}}`"
    kinds = {"tenant", "team"} if getattr(policies, "auth", None) is None else set()
    if all(getattr(policies, each, None) is None for each in ("auth", "basic_auth")):
        kinds.add("api_key")
    for kind in sorted(kinds.intersection(limit.kinds)):
        needs = "neither auth nor basic_auth" if kind == "api_key" else "no auth"
        yield place, f"the limit {name!r} counts per {kind}, but {whose} has {needs}"


def _check_budgets(config: ProxyConfig) -> Iterator[Problem]:
    if config.budgets and config.usage is None:
        message = "without a record of usage a restart would forget what was used; say `usage: {path: FILE}`, too"
        yield ("budgets",), message
    if config.budgets and not any(getattr(route.policies, "tokens", None) is not None for route in config.routes):
        message = "no route has the policy `tokens`, so that nothing is counted; give it to the routes to models"
        yield ("budgets",), message
    for name in config.budgets:
        if name in config.limits:
            yield ("budgets", name), f"{name} is also the name of a limit, and clients are told both; choose another"


def _check_variants(config: ProxyConfig, has_engine: bool) -> Iterator[Problem]:
    for i, route in enumerate(config.routes):
        table: Variants | None = getattr(route.policies, "variants", None)
        if table is None:
            continue
        loc: Loc = ("routes", i, "policies", "variants")
        if route.to is None:
            yield loc, "the route answers by itself, so there is nothing to vary"
        for name, variant in table.of.items():
            if variant.to is not None and route.models is not None:
                yield (*loc, "of", name, "to"), "the route goes by models; say a `model` that only this upstream serves"
            elif variant.to is not None:
                yield from _check_target((*loc, "of", name, "to"), variant.to, config, has_engine)
            if variant.model is not None and route.models is not None and variant.model not in config.model_routes:
                yield (*loc, "of", name, "model"), unknown("model route", variant.model, config.model_routes)
        for j, name in enumerate(table.models):
            if route.models is not None and name not in route.models.models:
                yield (*loc, "models", j), unknown("model of this route", name, route.models.models)
        if table.outcomes is not None:
            yield from _check_outcomes((*loc, "outcomes"), table.outcomes.path, route)


def _check_outcomes(loc: Loc, path: str, route: Route) -> Iterator[Problem]:
    if not parse_pattern(route.match.path).matches(path):
        yield (*loc, "path"), f"{path} is not within this route's match.path, {route.match.path}"
    if route.match.methods and "POST" not in route.match.methods:
        yield loc, "outcomes are told by POST, which this route's match.methods leaves out"
    if all(getattr(route.policies, name, None) is None for name in ("auth", "basic_auth")):
        yield loc, "anybody could tell them: the route has neither auth nor basic_auth"


def _check_actions(routes: tuple[Route, ...]) -> Iterator[Problem]:
    for i, route in enumerate(routes):
        for key, build in (("rewrite", _rewriter), ("redirect", _redirector)):
            try:
                build(route)
            except ValueError as error:
                yield ("routes", i, key), str(error)


def _rewriter(route: Route) -> Rewriter | None:
    return Rewriter(route.rewrite, route.match.path) if route.rewrite is not None else None


def _redirector(route: Route) -> Redirector | None:
    return Redirector(route.redirect, route.match) if route.redirect is not None else None


def _check_matches(routes: tuple[Route, ...]) -> Iterator[Problem]:
    #: By priority, host, shape of the path and number of conditions: what else is equal may not fit one request.
    peers: dict[object, list[tuple[int, Conditions | None]]] = {}
    labels: dict[str, int] = {}
    for i, route in enumerate(routes):
        match, conditions = route.match, conditions_of(route.match)
        host = match.host.lower() if match.host is not None else None
        key = (match.priority, host, parse_pattern(match.path).shape, conditions.count if conditions else 0)
        rivals = peers.setdefault(key, [])
        first = next((j for j, other in rivals if not _differ(conditions, other)), None)
        rivals.append((i, conditions))
        if first is not None and conditions is None:
            yield ("routes", i, "match"), f"the same host and path as routes[{first}]; which one is meant?"
        elif first is not None:
            message = (
                f"some requests fit this and routes[{first}], and neither asks for more; give one of them a `priority`"
            )
            yield ("routes", i, "match"), message
        elif labels.setdefault(route.label, i) != i:
            advice = "" if route.name else "; give one of them a `name`"
            yield ("routes", i, "name"), f"{route.label!r} is also the name of routes[{labels[route.label]}]{advice}"


def _differ(one: Conditions | None, other: Conditions | None) -> bool:
    return one is not None and other is not None and one.excludes(other)
