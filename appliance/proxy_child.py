"""The proxy's role in a child: build, commit and discard snapshots when told, and drain at the end.

Owns the inherited listening sockets by address and the descriptor of the access log, whose file may change under it.
"""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from appliance import exit_codes, log
from appliance.control import Message
from appliance.link import Link
from proxy.config import Materials
from proxy.config_routes import ProxyConfig


class Worker(Protocol):
    """proxy.worker.ProxyWorker, as far as it is needed here."""

    async def build(self, config: ProxyConfig, materials: Materials, sockets: Mapping[str, socket.socket]) -> Any: ...
    async def commit(self, snapshot: Any) -> None: ...
    def discard(self, snapshot: Any) -> None: ...
    def engine_state(self, up: bool, reason: str = "") -> None: ...
    def breakers(self) -> dict[str, dict[str, Any]]: ...
    def order_breakers(self, order: str, names: list[str], for_s: float | None, number: float) -> None: ...
    def variants(self) -> dict[str, list[dict[str, Any]]]: ...
    def order_variants(
        self, order: str, route: str, variant: str | None, share: float, number: float
    ) -> str | None: ...
    async def drain(self, deadline_s: float) -> bool: ...
    def statistics(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Pending:
    """A configuration that was built and waits for the verdict. The descriptor is where its access log goes."""

    revision: int
    snapshot: Any
    sockets: dict[str, socket.socket]
    access_log_fd: int
    log_level: str


class ProxyChild:
    """Carries the supervisor's orders out on a worker, one after the other."""

    def __init__(self, link: Link, worker: Worker, access_log_fd: int, build_error: type[Exception]) -> None:
        self._link = link
        self._worker = worker
        self._access_log_fd = access_log_fd
        self._build_error = build_error
        self._sockets: dict[str, socket.socket] = {}
        self._pending: Pending | None = None

    def report(self) -> tuple[None, dict[str, Any]]:
        """A proxy whose loop turns is well."""
        return None, self._worker.statistics()

    async def run(self) -> int:
        """Obey until told to end; return the exit code."""
        self._link.start_beating(self.report)
        while True:
            message, fds = await self._link.inbox.get()
            match message["type"]:
                case "configure":
                    await self._build(message, fds)
                case "commit":
                    await self._commit(message["revision"])
                case "discard":
                    self._discard(message["revision"])
                case "engine_state":
                    self._worker.engine_state(message["up"], message["reason"])
                case "breakers":
                    self._breakers(message)
                case "variants":
                    self._variants(message)
                case "drain":
                    self._drop_pending()
                    for sock in self._sockets.values():
                        sock.close()  # open, it would let clients in whom nobody answers
                    await self._link.finish(self._worker.drain, message["limit_s"])
                    return exit_codes.OK

    def _breakers(self, message: Message) -> None:
        upstream = message["upstream"]
        if message["order"] != "list":
            names = list(self._worker.breakers()) if upstream is None else [upstream]
            self._worker.order_breakers(message["order"], names, message["for_s"], message["given_at"])
        self._link.tell("answer", ticket=message["ticket"], breakers=self._worker.breakers())

    def _variants(self, message: Message) -> None:
        problem = None
        if message["order"] != "list":
            orders = (message[name] for name in ("order", "route", "variant", "share", "given_at"))
            problem = self._worker.order_variants(*orders)
        self._link.tell("answer", ticket=message["ticket"], problem=problem, variants=self._worker.variants())

    async def _build(self, message: Message, fds: list[int]) -> None:
        self._drop_pending()
        access_log_fd, *listener_fds = fds
        sockets = self._take(message["addresses"], listener_fds)
        config = ProxyConfig.model_validate_json(message["config"])
        materials = {name: base64.b64decode(content) for name, content in message["materials"].items()}
        revision = message["revision"]
        try:
            snapshot = await self._worker.build(config, materials, sockets)
        except self._build_error as error:
            self._close_unused(sockets)
            os.close(access_log_fd)
            self._link.tell("refused", revision=revision, problems=getattr(error, "problems", [str(error)]))
            return
        self._pending = Pending(revision, snapshot, sockets, access_log_fd, message["log_level"])
        self._link.tell("built", revision=revision)

    async def _commit(self, revision: int) -> None:
        pending, self._pending = self._pending, None
        if pending is None or pending.revision != revision:
            raise RuntimeError(f"told to commit revision {revision}, which was not built")
        os.dup2(pending.access_log_fd, self._access_log_fd, inheritable=False)
        os.close(pending.access_log_fd)
        log.set_level(pending.log_level)
        await self._worker.commit(pending.snapshot)
        for address in self._sockets.keys() - pending.sockets.keys():
            self._sockets[address].close()
        self._sockets = pending.sockets
        self._link.tell("serving", revision=revision)

    def _discard(self, revision: int) -> None:
        if self._pending is not None and self._pending.revision == revision:
            self._drop_pending()

    def _drop_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._worker.discard(pending.snapshot)
            self._close_unused(pending.sockets)
            os.close(pending.access_log_fd)

    def _take(self, addresses: list[str], fds: list[int]) -> dict[str, socket.socket]:
        """Sockets by address: those that are open here already, and of the descriptors only what is new."""
        sockets: dict[str, socket.socket] = {}
        for address, fd in zip(addresses, fds, strict=True):
            if address in self._sockets:
                os.close(fd)
                sockets[address] = self._sockets[address]
            else:
                sockets[address] = socket.socket(fileno=fd)
        return sockets

    def _close_unused(self, sockets: dict[str, socket.socket]) -> None:
        for address, sock in sockets.items():
            if address not in self._sockets:
                sock.close()
