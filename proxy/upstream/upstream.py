"""An upstream as requests use it: its servers, its breaker, its budget of retries and its times.

Owns what is one per upstream and worker, and how it outlives a reload: by name, as long as what it was made from stays
the same. ``down`` is set for the local engine while the supervisor knows that it cannot answer.
"""

from __future__ import annotations

import ssl
from collections.abc import Container
from dataclasses import dataclass

from proxy.config import Defaults, Health, Materials, Retry, Timeouts
from proxy.config import Upstream as UpstreamConfig
from proxy.config_routes import ENGINE
from proxy.engine_load import EngineLoad
from proxy.exchange import Exchange
from proxy.tls import upstream_context
from proxy.upstream.breaker import Breaker
from proxy.upstream.connections import Address, Server
from proxy.upstream.key_report import key_teller
from proxy.upstream.key_ring import KeyRing
from proxy.upstream.pool import Pool
from proxy.upstream.prober import Prober
from proxy.upstream.resolver import Resolver
from proxy.upstream.retry import RetryBudget
from proxy.upstream.servers import ServerEnv, build_pool, build_prober, build_server
from proxy.upstream.state import ServerState

ENGINE_RETRY_AFTER_S = 5.0  # it serves again within this time after a crash
#: The least time for the engine's first byte: an answer that is not streamed comes whole when it is done, and an engine
#: that is dead or hangs is found by its heartbeats.
ENGINE_FIRST_BYTE_S = 600.0
ENGINE_CONNECT_S = 60.0  # the least time for connecting to it: it may be about to be replaced, and must load its models


class EngineState:
    """What the supervisor says of the local engine. ``down``: why it cannot answer, or None."""

    def __init__(self) -> None:
        self.down: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Upstream:
    """authorization: the field value that replaces the client's, or None; keys: where there are several. watchers: what
    runs beside the traffic, while this is in the snapshot in use; each can be started and closed."""

    name: str
    is_local: bool
    servers: tuple[Server, ...]
    states: tuple[ServerState, ...]
    breaker: Breaker
    budget: RetryBudget
    timeouts: Timeouts
    retry: Retry
    engine: EngineState
    pool: Pool
    watchers: tuple[Prober | Resolver, ...] = ()
    authorization: bytes | None = None
    keys: KeyRing | None = None
    load: EngineLoad | None = None  # of the local engine

    def choose(self, x: Exchange, now: float, draw: float, tried: Container[str] = ()) -> Server:
        """The server for the next request: one that is left out beats none. draw: a random number in [0, 1). tried: the
        names of servers that failed it, which are asked again only when there is no other."""
        return self.servers[self.pool.choose(x, now, draw, tried).index]


def build_upstream(
    name: str, config: UpstreamConfig, defaults: Defaults, materials: Materials, env: ServerEnv, breaker: Breaker
) -> Upstream:
    """An upstream from its configuration. Raises ValueError naming what cannot be used."""
    states = env.states
    tls = _tls(config, materials)
    servers = tuple(build_server(name, each.url, config, tls, materials, env) for each in config.servers)
    refs = [ref for ref in (config.key, *config.spare_keys) if ref is not None]
    values = [b"Bearer " + materials[f"secret:{ref.secret}"].strip() for ref in refs]
    authorization = values[0] if values else None
    keys = None
    if len(values) > 1:
        tell = key_teller(name, len(values), env.cells, env.notify)
        keys = KeyRing(values, env.key_record(name, len(values)), tell)
    probers = tuple(build_prober(name, server, config.health, authorization, env) for server in servers)
    return Upstream(
        name,
        False,
        servers,
        tuple(server.state for server in servers),
        breaker,
        states.get(("retries", name), RetryBudget),
        config.timeouts or defaults.timeouts,
        config.retry or defaults.retry,
        EngineState(),
        build_pool(name, servers, config, env),
        tuple(each for each in (*(server.resolver for server in servers), *probers) if each is not None),
        authorization,
        keys,
    )


def build_engine(socket_path: str, defaults: Defaults, env: ServerEnv, breaker: Breaker) -> Upstream:
    """The local engine as an upstream. It has one server, so nothing is ejected."""
    states = env.states
    server = states.get(
        ("server", ENGINE, socket_path),
        lambda: Server(
            Address(path=socket_path),
            None,
            ServerState(ENGINE, Health(), alone=True),
            max_idle=100,
            keep_alive_s=30.0,
            metrics=env.metrics_of(ENGINE, ENGINE),
            comes_back=True,
        ),
    )
    least = {"connect": ENGINE_CONNECT_S, "first_byte": ENGINE_FIRST_BYTE_S}
    timeouts = defaults.timeouts.model_copy(
        update={name: max(getattr(defaults.timeouts, name), seconds) for name, seconds in least.items()}
    )
    return Upstream(
        ENGINE,
        True,
        (server,),
        (server.state,),
        breaker,
        states.get(("retries", ENGINE), RetryBudget),
        timeouts,
        defaults.retry,
        states.get(("engine state",), EngineState),
        build_pool(ENGINE, (server,), None, env),
        load=states.get(("engine load", socket_path), lambda: EngineLoad(socket_path)),
    )


def _tls(config: UpstreamConfig, materials: Materials) -> ssl.SSLContext | None:
    if not any(each.url.startswith("https://") for each in config.servers):
        return None
    return upstream_context(config.tls, materials)
