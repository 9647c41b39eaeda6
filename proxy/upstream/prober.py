"""Active health checks: one task for each server of the snapshot in use, which asks it now and then.

A check is a request of its own on a connection of its own, so that it sees what a new client would see and takes no
place from one. A name's addresses are all asked; the server is up when one of them is well, and the others are tried
last. What checks mean is decided in ``proxy.upstream.health``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from time import monotonic

from proxy.config import Health as HealthConfig
from proxy.exchange import Head
from proxy.upstream.connections import Server
from proxy.upstream.health import Health, verdict
from proxy.upstream.resolver import Unresolved
from proxy.upstream.retry import Failure
from proxy.upstream.transport import Exchanger

log = logging.getLogger("headrace.proxy")

MAX_BODY_BYTES = 65536
FIRST_S = 1.0  # within which the first check begins
_draw = random.random


class Prober:
    """The checks of one server. authorization: of the upstream, or None."""

    def __init__(self, server: Server, config: HealthConfig, *, authorization: bytes | None = None) -> None:
        assert config.path is not None
        self.health = Health(config, up=server.state.up)
        self._server = server
        self._config = config
        self._request = check_request(config.path, config.host or host_of(server), authorization)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        interval_s = self._config.interval
        await asyncio.sleep(_draw() * min(interval_s, FIRST_S))
        while True:
            try:
                self._told(await self._check())
            except Exception:
                log.exception("a check of %s failed inside the proxy", self._server.state.name)
            await asyncio.sleep(interval_s * (0.9 + 0.2 * _draw()))

    def _told(self, reason: str) -> None:
        server, health = self._server, self.health
        server.metrics.checks[reason == ""].add()
        server.reason = reason
        if not health.told(reason):
            return
        server.state.set_up(health.up)
        server.metrics.up.set(float(health.up))
        if health.up:
            log.info("the server %s is up", server.state.name)
        else:
            log.warning("the server %s is down: %s", server.state.name, reason)

    async def _check(self) -> str:
        """Why the server is not well, "" if it is."""
        server = self._server
        try:
            async with asyncio.timeout(self._config.timeout):
                if server.resolver is not None:
                    await server.resolver.ready()
        except Unresolved as error:
            return str(error)
        except TimeoutError:
            return f"its name {server.address.host} did not resolve within {self._config.timeout:g} s"
        addresses = server.addresses.all
        reasons = await asyncio.gather(*map(self._ask, addresses))
        for address, reason in zip(addresses, reasons, strict=True):
            server.addresses.told(address, reason == "")
        return "" if "" in reasons else reasons[0]

    async def _ask(self, address: str) -> str:
        config = self._config
        answer = _Answer(config)
        try:
            async with asyncio.timeout(config.timeout):
                connection = await self._server.dial_address(address, config.timeout)
                try:
                    connection.request(self._request, answer, head_request=False, now=monotonic())
                    return await answer.verdict
                finally:
                    connection.abort()
        except TimeoutError:
            return f"no answer within {config.timeout:g} s"
        except OSError as error:
            return error.strerror or str(error) or type(error).__name__


class _Answer(Exchanger):
    """Takes an answer until it is known whether it is a good one."""

    def __init__(self, config: HealthConfig) -> None:
        self.verdict: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._config = config
        self._status = 0
        self._body = b""

    def head(self, head: Head, dated: bool) -> None:
        self._status = head.status
        if self._config.body is None or verdict(head.status, b"", self._config.status, None):
            self._decide()

    def data(self, data: bytes) -> None:
        self._body += data[: MAX_BODY_BYTES - len(self._body)]
        if len(self._body) >= MAX_BODY_BYTES:
            self._decide()

    def end(self, trailers: Sequence[tuple[bytes, bytes]]) -> None:
        self._decide()

    def received(self) -> None: ...

    def failed(self, failure: Failure, reason: str) -> None:
        self._set(reason)

    def broke(self, error: Exception) -> None:
        self._set(f"a fault of the proxy: {error!r}")

    def _decide(self) -> None:
        self._set(verdict(self._status, self._body, self._config.status, self._config.body))

    def _set(self, reason: str) -> None:
        if not self.verdict.done():
            self.verdict.set_result(reason)


def host_of(server: Server) -> str:
    """The Host of requests to the server itself."""
    address = server.address
    if address.path is not None:
        return "localhost"
    host = f"[{address.host}]" if ":" in address.host else address.host
    default = 443 if address.server_name is not None else 80
    return host if address.port == default else f"{host}:{address.port}"


def check_request(path: str, host: str, authorization: bytes | None) -> bytes:
    """The request of a check; its connection is not used again."""
    lines = [
        f"GET {path} HTTP/1.1".encode(),
        b"Host: " + host.encode(),
        b"User-Agent: headrace-check",
        b"Accept: */*",
        b"Connection: close",
    ]
    if authorization is not None:
        lines.append(b"Authorization: " + authorization)
    return b"\r\n".join((*lines, b"", b""))
