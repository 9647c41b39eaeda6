"""A snapshot: all that requests need of one configuration, built whole and never changed.

Owns the way from configuration and materials to routes, chains, upstreams and TLS contexts. A build reads nothing but
its arguments and changes nothing that serves: what outlives a reload (limits, breakers, connections) it takes over
through ``States``. Every problem is collected and told at once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from proxy.budget_build import build_levels
from proxy.budget_level import BudgetLevel
from proxy.cells import Cells
from proxy.certificates import CertificateTable, certificate_table
from proxy.chain import Chain
from proxy.client_address import ClientAddress
from proxy.config import Breaker as BreakerConfig
from proxy.config import Listener, Materials
from proxy.config_models import Tokenizer
from proxy.config_routes import ENGINE, ProxyConfig, api_of, cross_check, route_of
from proxy.config_routes import Route as RouteConfig
from proxy.engine_load import EngineLoad
from proxy.ids import HexDigits
from proxy.llm.count import counter_beside
from proxy.llm.encodings import TextCounter
from proxy.llm.own_tokenizers import counters_by_name
from proxy.metrics import RouteMetrics
from proxy.model_routes import ModelRoutes
from proxy.policy import PolicyEnv, PolicySet, States, build_chain, by_model
from proxy.policy.env import Notify
from proxy.policy.variants import Variants, variants_of
from proxy.route import Route, Router
from proxy.shared.table import SharedTable
from proxy.upstream.breaker import Breaker
from proxy.upstream.breakers import ENGINE_BREAKER, build_breaker
from proxy.upstream.servers import ServerEnv
from proxy.upstream.upstream import Upstream, build_engine, build_upstream
from proxy.usage_log import UsageLog

_ids = HexDigits()


class BuildError(Exception):
    """The configuration cannot be served. problems: one line each, with the place it is about."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True, eq=False)
class ListenerPlan:
    """One listener, ready to serve. made_from: two plans that agree in it can share their listening server, which can
    show other certificates and serve other routes under way."""

    config: Listener
    tls: CertificateTable | None
    clients: ClientAddress
    redirect_port: int | None  # where https is, if this listener only redirects
    made_from: tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """unrouted: the chain and the metrics of requests that no route takes, or that are refused before routing.
    variants: the policies of routes that have some, by route.
    sockets: of its listeners, by address."""

    config: ProxyConfig
    router: Router
    upstreams: dict[str, Upstream]
    listeners: dict[str, ListenerPlan]
    unrouted: Chain
    variants: dict[str, Variants]
    metrics: dict[str, RouteMetrics]
    unrouted_metrics: RouteMetrics
    states: States
    budgets: tuple[BudgetLevel, ...] = ()
    usage_log: UsageLog | None = None
    sockets: dict[str, socket.socket] = field(default_factory=dict)


def build_snapshot(
    config: ProxyConfig,
    materials: Materials,
    addresses: Iterable[str],
    previous: States | None,
    cells: Cells,
    emit: Callable[[bytes], None] | None,
    shared: SharedTable,
    notify: Notify | None = None,
) -> Snapshot:
    """The snapshot of a configuration. addresses: of the listeners for which there are sockets. Raises BuildError."""
    problems = [f"{'.'.join(map(str, place))}: {text}" for place, text in cross_check(config)]
    if problems:
        raise BuildError(problems)
    build = _Build(config, materials, States(previous), cells, emit, shared, notify)
    upstreams = build.upstreams()
    routes = build.routes()
    listeners = build.listeners(frozenset(addresses))
    if build.problems:
        raise BuildError(build.problems)
    return Snapshot(
        config,
        Router(routes),
        upstreams,
        listeners,
        build_chain(PolicySet(), build.env("")),
        variants_of(route.chain.policies for route in routes),
        {route.name: RouteMetrics(cells, route.name) for route in routes},
        RouteMetrics(cells, ""),
        build.states,
        build.budgets,
        build.usage_log,
    )


def counts_tokens(table: RouteConfig) -> bool:
    """Whether policies of a route count the tokens of texts."""
    return any(getattr(table.policies, name) is not None for name in ("context_guard", "tokens"))


def make_encoders(config: ProxyConfig) -> None:
    """Make what tokens are counted with, which may take a second: to be called in a thread before ``build_snapshot``,
    which finds them then."""
    for table in config.routes:
        if counts_tokens(table):
            counter_beside(table.policies)
            counters_by_name(config.engine_tokenizers if ENGINE in config.targets_of(table) else {})


class _Build:
    """One build under way; what cannot be used is noted in ``problems`` and left out."""

    def __init__(
        self,
        config: ProxyConfig,
        materials: Materials,
        states: States,
        cells: Cells,
        emit: Callable[[bytes], None] | None,
        shared: SharedTable,
        notify: Notify | None,
    ) -> None:
        self._config = config
        self._materials = materials
        self.states = states
        self._cells = cells
        self._emit = emit
        self._shared = shared
        self._notify = notify
        self._breakers: dict[str, Breaker] = {}
        self.problems: list[str] = []
        self.budgets = self._levels()
        self.usage_log = self._usage_log()

    def env(self, route: str) -> PolicyEnv:
        """What the policies of a route are built with."""
        config = self._config
        return PolicyEnv(
            route, config.limits, self._materials, self.states, self._cells, self._emit, _ids.draw, self._shared,
            budgets=self.budgets, usage_log=self.usage_log, notify=self._notify,
        )  # fmt: skip

    def upstreams(self) -> dict[str, Upstream]:
        config = self._config
        env = ServerEnv(self.states, self._cells, self._shared.record, self._notify)
        built: dict[str, Upstream] = {}
        for name, table in config.upstreams.items():
            try:
                built[name] = build_upstream(
                    name, table, config.defaults, self._materials, env, self._breaker(name, table.breaker)
                )
            except (ValueError, KeyError) as error:
                self.problems.append(f"upstreams.{name}: {error}")
        if config.engine_socket is not None:
            try:
                breaker = self._breaker(ENGINE, ENGINE_BREAKER)
                built[ENGINE] = build_engine(config.engine_socket, config.defaults, env, breaker)
            except ValueError as error:
                self.problems.append(f"models: {error}")
        return built

    def routes(self) -> list[Route]:
        built: list[Route] = []
        for index, table in enumerate(self._config.routes):
            try:
                env = replace(self._env_of(table), api=api_of(table, self._config.upstreams))
                chain = build_chain(table.policies, env)
            except (ValueError, KeyError) as error:
                self.problems.append(f"routes.{index}.policies: {error}")
                continue
            built.append(route_of(table, index, self._config, chain))
        return built

    def _engine_load(self, table: RouteConfig) -> EngineLoad | None:
        path = self._config.engine_socket
        if path is None or ENGINE not in self._config.targets_of(table):
            return None
        return self.states.get(("engine load", path), lambda: EngineLoad(path))

    def _env_of(self, table: RouteConfig) -> PolicyEnv:
        """Of a route that goes upstream: what it knows of models, too."""
        config, to = self._config, table.models
        if to is None:
            load, counters = self._engine_load(table), self._counters(table, config.engine_tokenizers)
            env = self.env(table.label)
            return replace(env, contexts=config.engine_contexts, counters=counters, engine_load=load)
        models = ModelRoutes(config.model_routes, to.models, to.default, config.variant_models(table))
        build = partial(by_model.build, models, breakers=self._breakers)
        contexts, load = models.contexts(config.engine_contexts), self._engine_load(table)
        counters = self._counters(table, models.tokenizers(config.engine_tokenizers))
        env = replace(self.env(table.label), contexts=contexts, counters=counters)
        alone = config.targets_of(table) == (ENGINE,)
        return replace(env, by_model=build, models=models, engine_load=load, engine_alone=alone)

    def _counters(self, table: RouteConfig, known: Mapping[str, Tokenizer]) -> dict[str, TextCounter]:
        """The tokenizers of the engine's models, on a route that goes there and whose policies count."""
        goes_there = ENGINE in self._config.targets_of(table)
        return counters_by_name(known) if goes_there and counts_tokens(table) else {}

    def listeners(self, addresses: frozenset[str]) -> dict[str, ListenerPlan]:
        listeners = self._config.listeners
        https_port = next((_port(listener.address) for listener in listeners if listener.tls is not None), 443)
        plans: dict[str, ListenerPlan] = {}
        for index, table in enumerate(listeners):
            if table.address not in addresses:
                self.problems.append(f"listeners.{index}.address: there is no socket for {table.address}")
                continue
            try:
                plans[table.address] = self._plan(table, https_port)
            except ValueError as error:
                self.problems.append(f"listeners.{index}.tls: {error}")
        return plans

    def _plan(self, table: Listener, https_port: int) -> ListenerPlan:
        certificates = certificate_table(table.tls, self._materials) if table.tls is not None else None
        made_from = (table.limits, table.tls.min_version if table.tls is not None else None)
        clients = ClientAddress(table.trusted_proxies)
        return ListenerPlan(table, certificates, clients, https_port if table.redirect else None, made_from)

    def _levels(self) -> tuple[BudgetLevel, ...]:
        try:
            return build_levels(self._config.budgets, self._shared, self._cells, _ids.draw)
        except ValueError as error:
            self.problems.append(f"budgets: {error}")
            return ()

    def _usage_log(self) -> UsageLog | None:
        table = self._config.usage
        if table is None:
            return None
        doc = "Requests whose usage was taken to be recorded, and those of them that were not."
        recorded, dropped = [
            self._cells.counter(f"headrace_usage_{word}_total", doc).add for word in ("recorded", "dropped")
        ]
        key = ("usage", table.path, table.keep, table.size)
        return self.states.get(key, lambda: UsageLog(table.path, table.keep, table.size, recorded, dropped))

    def _breaker(self, upstream: str, table: BreakerConfig) -> Breaker:
        breaker = build_breaker(upstream, table, self.states, self._shared, self._cells, self._notify)
        self._breakers[upstream] = breaker
        return breaker


def _port(address: str) -> int:
    return int(address.rpartition(":")[2]) if not address.startswith("unix:") else 443
