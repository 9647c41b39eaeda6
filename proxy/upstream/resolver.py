"""A server's name and its addresses: asked for beside the traffic, again and again.

Owns one task per name, of the snapshot in use. The question goes to the system's resolver, off the loop: so /etc/hosts
and whatever else the box is set up with hold here as everywhere; it does not tell how long an answer may be kept, hence
``dns.ttl``. When no answer comes the last good one stays. A name that never had one is no reason not to start: its
requests fail with the reason until it resolves.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Sequence

from proxy.upstream.addresses import Addresses

log = logging.getLogger("headrace.proxy")

RETRY_S = 1.0  # after a failure; doubles up to the ttl
Lookup = Callable[[str], Awaitable[Sequence[str]]]


class Unresolved(Exception):
    """The name has no address that is known; the message says why."""


def is_name(host: str) -> bool:
    """Whether a host must be resolved, not being an address."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return True
    return False


async def look_up(name: str) -> Sequence[str]:
    """The addresses that the system knows for a name. Raises OSError."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError("it is not a name that DNS can have") from None
    return [str(where[0]) for *_, where in found]


def _nothing() -> None: ...


class Resolver:
    """One name. changed: called when the addresses are others. failed: called when there was no answer."""

    __slots__ = ("_asked", "_failed", "_lookup", "_task", "_ttl_s", "addresses", "changed", "name", "problem")

    def __init__(
        self,
        name: str,
        ttl_s: float,
        *,
        changed: Callable[[], None] = _nothing,
        failed: Callable[[], None] = _nothing,
        lookup: Lookup | None = None,
    ) -> None:
        self.name = name
        self.addresses = Addresses()
        self.problem = ""
        self.changed = changed
        self._failed = failed
        self._ttl_s = ttl_s
        self._lookup: Lookup = look_up if lookup is None else lookup
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
        self._asked.set()

    async def ready(self) -> None:
        """Return when there are addresses. Raises Unresolved."""
        if not self.addresses.all:
            await self._asked.wait()
        if not self.addresses.all:
            raise Unresolved(f"its name {self.name} does not resolve: {self.problem or 'it was not asked for'}")

    async def ask(self) -> bool:
        """Ask once; whether there was an answer."""
        try:
            found = await self._lookup(self.name)
            if not found:
                raise OSError("it has no address")
        except OSError as error:
            self._note_failure(error.strerror or str(error))
            return False
        finally:
            self._asked.set()
        if self.problem:
            log.info("the name %s resolves again", self.name)
            self.problem = ""
        if self.addresses.replace(found):
            self.changed()
        return True

    def _note_failure(self, problem: str) -> None:
        if not self.problem:
            kept = "its last addresses stay in use" if self.addresses.all else "requests to it fail until it does"
            log.warning("the name %s does not resolve: %s; %s", self.name, problem, kept)
        self.problem = problem
        self._failed()

    async def _run(self) -> None:
        retry_s = RETRY_S
        while True:
            if await self.ask():
                delay_s = self._ttl_s
                retry_s = RETRY_S
            else:
                delay_s = min(retry_s, self._ttl_s)
                retry_s *= 2.0
            # Drawn, so that all workers and names do not ask in the same moment for ever.
            await asyncio.sleep(delay_s * (0.9 + 0.2 * random.random()))  # noqa: S311
