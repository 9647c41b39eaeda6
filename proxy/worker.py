"""A proxy worker: builds snapshots, serves with one of them, swaps it without cutting anything, and drains.

Owns the running state of one process: listening servers, the snapshot in use, the requests under way, and the sweep,
which twice a second holds every connection to its times, so that no request needs a timer. Knows nothing of the
control channel or of signals: the appliance's child calls the methods.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakSet

from proxy import budget_build
from proxy.build import BuildError, ListenerPlan, Snapshot, build_snapshot, make_encoders
from proxy.cells import Cells
from proxy.config import Materials
from proxy.config_routes import ENGINE, ProxyConfig
from proxy.downstream import ClientConnection, require_c_parser
from proxy.edge_server import EdgeServer
from proxy.front import Front, InUse
from proxy.idempotency.sqlite_store import SqliteStore
from proxy.log_writer import LineWriter
from proxy.memory import keep_free_end
from proxy.metrics import WorkerMetrics
from proxy.policy.env import Notify
from proxy.policy.variants import Variants
from proxy.relay import Relay
from proxy.shared.table import SharedTable
from proxy.tls import ListenerTls
from proxy.upstream.breaker import Breaker
from proxy.upstream.breakers import apply_tables, give_order, show, watch
from proxy.upstream.connections import Server
from proxy.upstream.prober import Prober
from proxy.upstream.resolver import Resolver
from proxy.usage_log import UsageLog
from proxy.usage_store import StoreError

__all__ = ["BuildError", "ProxyWorker", "Snapshot"]

SWEEP_S = 0.5
_BACKLOG = 1024
_TLS_SHUTDOWN_S = 2.0
_DRAIN_POLL_S = 0.05
_DRAIN_TURNS = 10
_MEET_POLL_S = 0.005  # a busy worker says at its next decision that it has heard of us, an idle one at its next sweep


@dataclass(slots=True)
class _Listening:
    """A listener that accepts: its plan may be replaced by one that needs no other server."""

    front: Front
    edge: EdgeServer
    server: asyncio.Server
    tls: ListenerTls | None


class ProxyWorker:
    """One worker process's proxy. All methods are called on its event loop."""

    def __init__(
        self,
        *,
        cells: Cells | None = None,
        shared: SharedTable | None = None,
        access_log_fd: int | None = None,
        notify: Notify | None = None,
        sweep_s: float = SWEEP_S,
    ) -> None:
        """cells: where to count; None: nowhere that anybody reads. shared: with other workers; None: there are none.
        access_log_fd: None writes no access log. notify: told what changes by itself, beside the log."""
        require_c_parser()
        keep_free_end()
        self._cells = cells if cells is not None else Cells()
        self._shared = shared if shared is not None else SharedTable.alone()
        self._metrics = WorkerMetrics(self._cells)
        self._log = LineWriter(access_log_fd, self._metrics.log_dropped.add)
        self._notify = notify
        self._sweep_s = sweep_s
        self._sockets: dict[str, socket.socket] = {}
        self._listening: dict[str, _Listening] = {}
        self._edges: set[EdgeServer] = set()  # those of replaced listeners too, while they have connections
        self._relays: set[Relay] = set()
        self._usage_logs: WeakSet[UsageLog] = WeakSet()  # those of replaced snapshots too, while they have records
        self._stores: WeakSet[SqliteStore] = WeakSet()  # of answers: replaced ones too, while they may be written to
        self._in_use = InUse()
        self._engine_down: str | None = None
        self._sweep_handle: asyncio.TimerHandle | None = None
        self._sweep_due = 0.0
        self._lag_s = 0.0

    # Snapshots

    async def build(self, config: ProxyConfig, materials: Materials, sockets: Mapping[str, socket.socket]) -> Snapshot:
        """A snapshot, ready to commit. sockets: of new listeners, bound, by address; those in use are known.

        Raises BuildError with every problem; nothing that serves is changed either way. Begins when the other workers
        know of this one.
        """
        while not self._shared.may_decide:  # noqa: ASYNC110
            await asyncio.sleep(_MEET_POLL_S)
        await asyncio.to_thread(make_encoders, config)
        known = {**self._sockets, **sockets}
        previous = self._snapshot.states if self._snapshot is not None else None
        emit = self._log.emit if self._log.writes else None
        snapshot = build_snapshot(config, materials, known, previous, self._cells, emit, self._shared, self._notify)
        if config.usage is not None:
            try:
                await budget_build.begin(snapshot.budgets, config.usage.path, time.time())
            except StoreError as error:
                raise BuildError([f"usage.path: {error}"]) from None
        snapshot.sockets.update({address: known[address] for address in snapshot.listeners})
        return snapshot

    async def commit(self, snapshot: Snapshot) -> None:
        """Serve with a snapshot from now on; requests under way keep theirs. Starts and stops listeners."""
        before, self._in_use.snapshot = self._snapshot, snapshot
        if ENGINE in snapshot.upstreams:
            snapshot.upstreams[ENGINE].engine.down = self._engine_down
        snapshot.states.seal()
        if before is not None:
            budget_build.forget(before.budgets, snapshot.budgets)
        if snapshot.usage_log is not None:
            self._usage_logs.add(snapshot.usage_log)
        self._stores.update(snapshot.states.of(SqliteStore))
        apply_tables(_breakers(snapshot), snapshot.config)
        for variants in snapshot.variants.values():
            variants.look(time.monotonic())
        self._sockets = dict(snapshot.sockets)
        for watcher in _watchers(snapshot):
            watcher.start()
        for address, plan in snapshot.listeners.items():
            await self._listen(address, plan)
        for address in self._listening.keys() - snapshot.listeners.keys():
            gone = self._listening.pop(address)
            gone.server.close()
            self._let_go(gone.edge)
        if before is not None:
            for server in _servers(before) - _servers(snapshot):
                server.close()
            for watcher in _watchers(before) - _watchers(snapshot):
                watcher.close()
        for server in _servers(snapshot):
            server.start()
        if self._sweep_handle is None:
            _calm_collector()
            self._schedule_sweep()

    def discard(self, snapshot: Snapshot) -> None:
        """Drop a snapshot that will not be committed. It has touched nothing, so there is nothing to undo but its
        sockets and the budgets that only it has."""
        if self._snapshot is not None:  # else the others serve, who know what they count by
            budget_build.forget(snapshot.budgets, self._snapshot.budgets)
        for address, sock in snapshot.sockets.items():
            if self._sockets.get(address) is not sock:
                sock.close()

    async def _listen(self, address: str, plan: ListenerPlan) -> None:
        current = self._listening.get(address)
        if current is not None and current.front.plan.made_from == plan.made_from:
            current.front.use(plan)
            if current.tls is not None and plan.tls is not None:
                current.tls.show(plan.tls)
            return
        front = Front(plan, self._in_use, self._relays)
        scheme = "https" if plan.tls is not None else "http"
        edge = EdgeServer(
            front.serve,
            plan.config.limits,
            scheme=scheme,
            stands_for_many=lambda peer: front.plan.clients.trusts(peer),
        )
        self._edges.add(edge)
        context: ListenerTls | None = None
        tls: dict[str, Any] = {}
        if plan.config.tls is not None and plan.tls is not None:
            context = ListenerTls(plan.config.tls, plan.tls, max_connections=plan.config.limits.connections)
            tls = {
                "ssl": context,
                "ssl_handshake_timeout": plan.config.limits.handshake,
                "ssl_shutdown_timeout": _TLS_SHUTDOWN_S,
            }
        loop = asyncio.get_running_loop()
        # A duplicate: closing a server must not close the socket, which the next one may go on accepting from.
        sock = self._sockets[address].dup()
        make = cast(Callable[[], asyncio.BaseProtocol], lambda: ClientConnection(edge))
        if sock.family == socket.AF_UNIX:
            server = await loop.create_unix_server(make, sock=sock, backlog=_BACKLOG, **tls)
        else:
            server = await loop.create_server(make, sock=sock, backlog=_BACKLOG, **tls)
        self._listening[address] = _Listening(front, edge, server, context)
        if current is not None:
            current.server.close()
            self._let_go(current.edge)

    @property
    def _snapshot(self) -> Snapshot | None:
        return self._in_use.snapshot

    @staticmethod
    def _let_go(edge: EdgeServer) -> None:
        for connection in tuple(edge.open):
            connection.close_if_idle()

    # State

    def engine_state(self, up: bool, reason: str = "") -> None:
        """Take the supervisor's word on the local engine: down, its routes answer 503 at once; up, it begins afresh."""
        self._engine_down = None if up else (reason or "it is down")
        upstream = self._snapshot.upstreams.get(ENGINE) if self._snapshot is not None else None
        if upstream is None:
            return
        upstream.engine.down = self._engine_down
        if up:
            upstream.breaker.reset(time.monotonic())
            for state in upstream.states:
                state.reset()

    def breakers(self) -> dict[str, dict[str, Any]]:
        """The upstreams' breakers by name, as plain JSON values."""
        now = time.monotonic()
        return {name: show(breaker, now) for name, breaker in _breakers(self._snapshot).items()}

    def order_breakers(self, order: str, names: list[str], for_s: float | None, number: float) -> None:
        """Open, close or reset breakers; a ``number`` that was obeyed by any worker is not obeyed again."""
        give_order(_breakers(self._snapshot), order, names, for_s, number, time.monotonic())

    def variants(self) -> dict[str, list[dict[str, Any]]]:
        """The variants of routes that have some, by the route's name, as plain JSON values."""
        now = time.monotonic()
        return {route: variants.experiment.show(now) for route, variants in _variants(self._snapshot).items()}

    def order_variants(self, order: str, route: str, variant: str | None, share: float, number: float) -> str | None:
        """Set a variant's share, or begin one or all anew, once for one ``number``; what is wrong with it, or None."""
        variants = _variants(self._snapshot).get(route)
        if variants is None:
            known = ", ".join(sorted(_variants(self._snapshot))) or "none"
            return f"no route named {route!r} has variants; those that have: {known}"
        return variants.experiment.order(order, variant, share, number, time.monotonic())

    async def drain(self, deadline_s: float) -> bool:
        """Accept nothing more, close what is idle, let the rest end, abort at the deadline. True: nothing was cut."""
        until = time.monotonic() + deadline_s
        for listening in self._listening.values():
            listening.server.close()
        self._listening.clear()
        for edge in self._edges:
            self._let_go(edge)
        while (left := self._open()) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_S)  # an event per connection would cost every request, for this one moment
        for connection in left:
            if connection.transport is not None:
                connection.transport.abort()
        for _ in range(_DRAIN_TURNS if left else 0):  # what was cut is settled in the next turns, and logged
            await asyncio.sleep(0)
            if not self._relays:
                break
        if self._sweep_handle is not None:
            self._sweep_handle.cancel()
        for server in _servers(self._snapshot) if self._snapshot is not None else ():
            server.close()
        for watcher in _watchers(self._snapshot) if self._snapshot is not None else ():
            watcher.close()
        await self._log.close()
        for usage_log in tuple(self._usage_logs):
            await usage_log.close()
        for store in tuple(self._stores):
            await store.flush()
        return not left

    def statistics(self) -> dict[str, Any]:
        """Numbers for ``headrace status``."""
        now = time.monotonic()
        upstreams = self._snapshot.upstreams if self._snapshot is not None else {}
        return {
            "connections": len(self._open()),
            "exchanges": len(self._relays),
            "loop_lag_s": round(self._lag_s, 4),
            "upstreams": {
                name: {
                    "breaker": upstream.breaker.state.value,
                    "panic": upstream.pool.panic,
                    "servers": {server.state.name: server.statistics(now) for server in upstream.servers},
                }
                for name, upstream in upstreams.items()
            },
        }

    def _open(self) -> list[ClientConnection]:
        return [connection for edge in self._edges for connection in edge.open]

    # The sweep

    def _schedule_sweep(self) -> None:
        self._sweep_due = time.monotonic() + self._sweep_s
        self._sweep_handle = asyncio.get_running_loop().call_later(self._sweep_s, self._sweep)

    def _sweep(self) -> None:
        now = time.monotonic()
        self._lag_s = max(0.0, now - self._sweep_due)
        self._shared.look()
        connections = self._open()
        for connection in connections:
            connection.check(now)
        for relay in tuple(self._relays):
            relay.check(now)
        for server in _servers(self._snapshot) if self._snapshot is not None else ():
            server.drop_old(now)
        watch(_breakers(self._snapshot), self._cells, now)
        for variants in _variants(self._snapshot).values():
            variants.look(now)
        serving = {listening.edge for listening in self._listening.values()}
        self._edges = {edge for edge in self._edges if edge in serving or edge.open}
        self._metrics.loop_lag.set(self._lag_s)
        self._metrics.connections.set(len(connections))
        self._metrics.relays.set(len(self._relays))
        self._log.flush()
        self._schedule_sweep()


def _calm_collector() -> None:
    """Keep the cycle collector off the data path, which makes no cycles: at its defaults it takes a sixth of the time,
    walking objects that requests under way will free by themselves, and what the process keeps for good."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _servers(snapshot: Snapshot) -> set[Server]:
    return {server for upstream in snapshot.upstreams.values() for server in upstream.servers}


def _breakers(snapshot: Snapshot | None) -> dict[str, Breaker]:
    upstreams = snapshot.upstreams if snapshot is not None else {}
    return {name: upstream.breaker for name, upstream in upstreams.items()}


def _variants(snapshot: Snapshot | None) -> dict[str, Variants]:
    return snapshot.variants if snapshot is not None else {}


def _watchers(snapshot: Snapshot) -> set[Prober | Resolver]:
    return {watcher for upstream in snapshot.upstreams.values() for watcher in upstream.watchers}
