"""The servers of an upstream from their configuration: what each is made from, and so when it outlives a reload.

Owns the keys under which servers, their states and their checks are carried from one snapshot to the next: by name, as
long as what they were made from stays the same. Failures and ejections are kept by name alone, for the whole box.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proxy.cells import Cells
from proxy.config import HashBalance, Health, Materials
from proxy.config import Upstream as UpstreamConfig
from proxy.policy.env import Notify, States
from proxy.shared.record import LocalRecord, Record
from proxy.tls import upstream_materials
from proxy.upstream.balance import Member, Picks, pick_in_turn, pick_least
from proxy.upstream.balance_hash import Hash, hash_of
from proxy.upstream.connections import Bounds, Server, parse_address
from proxy.upstream.metrics import ServerMetrics, UpstreamMetrics
from proxy.upstream.pool import Pool
from proxy.upstream.prober import Prober
from proxy.upstream.resolver import Resolver, is_name
from proxy.upstream.state import RECORD_SIZE, Changes, ServerState

log = logging.getLogger("headrace.proxy")


@dataclass(frozen=True, slots=True)
class ServerEnv:
    """What servers are built with. record: the box's record of a name and a size; None: kept in this worker. notify:
    told what changes by itself, beside the log."""

    states: States
    cells: Cells = field(default_factory=Cells)
    record: Callable[[str, int], Record] | None = None
    notify: Notify | None = None

    def metrics_of(self, upstream: str, server: str) -> ServerMetrics:
        """The server's numbers."""
        return ServerMetrics(self.cells, upstream, server)

    def record_of(self, upstream: str, server: str) -> Record:
        """The server's failures and ejection."""
        if self.record is not None:
            return self.record(f"ejection/{upstream}/{server}", RECORD_SIZE)
        return self.states.get(("ejection", upstream, server), lambda: LocalRecord(RECORD_SIZE))

    def key_record(self, upstream: str, num_keys: int) -> Record:
        """Until when each of the upstream's keys rests."""
        place = f"keys/{upstream}/{num_keys}"
        if self.record is not None:
            return self.record(place, num_keys)
        return self.states.get((place,), lambda: LocalRecord(num_keys))


def build_server(
    name: str, url: str, config: UpstreamConfig, tls: ssl.SSLContext | None, materials: Materials, env: ServerEnv
) -> Server:
    """One server of the upstream ``name``. Raises ValueError when its URL cannot be used."""
    address, uses_tls = parse_address(url, config.tls.server_name)
    states = env.states
    changes = states.get(("server changes",), Changes)
    metrics = env.metrics_of(name, url)
    record = env.record_of(name, url)
    alone = len(config.servers) == 1
    state = states.get(
        ("server state", name, url, config.health, alone),
        lambda: ServerState(url, config.health, record, changes, metrics.ejections.add, alone=alone),
    )
    bounds = Bounds(config.max_connections, config.pending, config.pending_timeout)
    made_from: tuple[object, ...] = (config.connections, config.keep_alive, bounds, alone)
    resolver = None
    if address.path is None and is_name(address.host):
        made_from += (config.dns,)
        resolver = Resolver(address.host, config.dns.ttl, failed=metrics.dns_failures.add)
    if uses_tls:
        made_from += (config.tls, upstream_materials(config.tls, materials))
    return states.get(
        ("server", name, url, config.health, made_from),
        lambda: Server(
            address,
            tls if uses_tls else None,
            state,
            max_idle=config.connections,
            keep_alive_s=config.keep_alive,
            bounds=bounds,
            resolver=resolver,
            metrics=metrics,
        ),
    )


def build_prober(
    name: str, server: Server, health: Health, authorization: bytes | None, env: ServerEnv
) -> Prober | None:
    """The checks of a server; None if none are configured."""
    if health.path is None:
        return None
    return env.states.get(
        ("prober", name, server, authorization), lambda: Prober(server, health, authorization=authorization)
    )


def build_pool(name: str, servers: Sequence[Server], config: UpstreamConfig | None, env: ServerEnv) -> Pool:
    """How one of the servers is chosen. config: None for the local engine."""
    weights = [each.weight for each in config.servers] if config is not None else [1] * len(servers)
    picks: Picks = pick_least
    if config is not None and isinstance(config.balance, HashBalance):
        picks = Hash(config.balance)
    elif config is not None and config.balance == "round_robin":
        picks = pick_in_turn
    members = [
        Member(index, server.state, weight, hash_of(server.state.name))
        for index, (server, weight) in enumerate(zip(servers, weights, strict=True))
        if weight
    ]
    metrics = UpstreamMetrics(env.cells, name)

    def panicked(began: bool) -> None:
        metrics.panic.set(float(began))
        if began:
            metrics.panics.add()
            log.warning("more than half of the servers of %s are down or ejected: all are used (panic)", name)
        else:
            log.info("at least half of the servers of %s are well again: the others are left out", name)

    return Pool(members, picks, panicked)
