"""An upstream as requests use it: its servers, its breaker, its budget of retries and its times.

Owns what is one per upstream and worker, and how it outlives a reload: by name, as long as what it was made from stays
the same. ``down`` is set for the local engine while the supervisor knows that it cannot answer.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass

from proxy.config import Breaker as BreakerConfig
from proxy.config import Defaults, Materials, PassiveHealth, Retry, Timeouts
from proxy.config import Upstream as UpstreamConfig
from proxy.config_routes import ENGINE
from proxy.policy import States
from proxy.tls import upstream_context
from proxy.upstream.breaker import Breaker, Event, State
from proxy.upstream.connections import Address, Server, parse_address
from proxy.upstream.pool import ServerState
from proxy.upstream.retry import RetryBudget

ENGINE_RETRY_AFTER_S = 5.0  # it serves again within this time after a crash
#: The least time for the engine's first byte: an answer that is not streamed comes whole when it is done, and an engine
#: that is dead or hangs is found by its heartbeats.
ENGINE_FIRST_BYTE_S = 600.0

Changed = Callable[[Event, State, State], None]


class EngineState:
    """What the supervisor says of the local engine. ``down``: why it cannot answer, or None."""

    def __init__(self) -> None:
        self.down: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Upstream:
    """authorization: the field value that replaces the client's, or None."""

    name: str
    is_local: bool
    servers: tuple[Server, ...]
    states: tuple[ServerState, ...]
    breaker: Breaker
    budget: RetryBudget
    timeouts: Timeouts
    retry: Retry
    engine: EngineState
    authorization: bytes | None = None

    def server(self, state: ServerState) -> Server:
        """The server whose state the pool chose."""
        return self.servers[self.states.index(state)]


def build_upstream(
    name: str, config: UpstreamConfig, defaults: Defaults, materials: Materials, states: States, changed: Changed
) -> Upstream:
    """An upstream from its configuration. Raises ValueError naming what cannot be used."""
    tls = _tls(config, materials)
    servers = tuple(_server(name, each.url, config, tls, materials, states) for each in config.servers)
    authorization = None
    if config.key is not None:
        authorization = b"Bearer " + materials[f"secret:{config.key.secret}"].strip()
    return Upstream(
        name,
        False,
        servers,
        tuple(server.state for server in servers),
        states.get(("breaker", name, config.breaker), lambda: Breaker(config.breaker, changed)),
        states.get(("retries", name), RetryBudget),
        config.timeouts or defaults.timeouts,
        config.retry or defaults.retry,
        EngineState(),
        authorization,
    )


def build_engine(socket_path: str, defaults: Defaults, states: States, changed: Changed) -> Upstream:
    """The local engine as an upstream. It has one server, so nothing is ejected, and its breaker has the defaults."""
    health = PassiveHealth()
    server = states.get(
        ("server", ENGINE, socket_path),
        lambda: Server(Address(path=socket_path), None, ServerState(ENGINE, health), max_idle=100, keep_alive_s=30.0),
    )
    breaker = BreakerConfig()
    patience_s = max(defaults.timeouts.first_byte, ENGINE_FIRST_BYTE_S)
    timeouts = defaults.timeouts.model_copy(update={"first_byte": patience_s})
    return Upstream(
        ENGINE,
        True,
        (server,),
        (server.state,),
        states.get(("breaker", ENGINE, breaker), lambda: Breaker(breaker, changed)),
        states.get(("retries", ENGINE), RetryBudget),
        timeouts,
        defaults.retry,
        states.get(("engine state",), EngineState),
    )


def _tls(config: UpstreamConfig, materials: Materials) -> ssl.SSLContext | None:
    if not any(each.url.startswith("https://") for each in config.servers):
        return None
    return upstream_context(config.tls, materials)


def _server(
    name: str, text: str, config: UpstreamConfig, tls: ssl.SSLContext | None, materials: Materials, states: States
) -> Server:
    address, uses_tls = parse_address(text, config.tls.server_name)
    state = states.get(("server state", name, text, config.health), lambda: ServerState(text, config.health))
    made_from = (config.connections, config.keep_alive)
    if uses_tls:
        made_from += (config.tls, materials.get(config.tls.ca or ""))  # type: ignore[assignment]
    return states.get(
        ("server", name, text, state.health, made_from),
        lambda: Server(
            address,
            tls if uses_tls else None,
            state,
            max_idle=config.connections,
            keep_alive_s=config.keep_alive,
        ),
    )
