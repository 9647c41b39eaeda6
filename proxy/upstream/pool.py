"""Which server of an upstream takes the next request, and which is left out for a while. Pure.

Owns least requests (the fewest in flight, ties by a drawn number) and passive health: a server with ``fails`` failures
running is ejected for ``eject`` seconds. At most half of the servers are ever left out: when more should be, those that
would return first serve on, because a pool that ejects itself to death is worse than a bad server.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from proxy.config import PassiveHealth


class ServerState:
    """One server's live numbers. name: as configured. They outlive a reload by name."""

    __slots__ = ("ejected_until", "fails_running", "health", "in_flight", "name", "num_ejections")

    def __init__(self, name: str, health: PassiveHealth) -> None:
        self.name = name
        self.health = health
        self.in_flight = 0
        self.fails_running = 0
        self.ejected_until = 0.0
        self.num_ejections = 0

    def started(self) -> None:
        """A request goes to this server; ``finished`` must follow."""
        self.in_flight += 1

    def finished(self, ok: bool | None, now: float) -> None:
        """A request to this server ended: True good, False it failed, None it says nothing (the client left).

        Failures keep counting through an ejection, so that one more after it ejects again.
        """
        self.in_flight -= 1
        if ok:
            self.fails_running = 0
            self.ejected_until = 0.0
        elif ok is not None:
            self.fails_running += 1
            if self.fails_running >= self.health.fails and now >= self.ejected_until:
                self.ejected_until = now + self.health.eject
                self.num_ejections += 1

    def reset(self) -> None:
        """Forget failures and ejection; what is in flight stays counted."""
        self.fails_running = 0
        self.ejected_until = 0.0


def choose(servers: Sequence[ServerState], now: float, draw: float, tried: Container[str] = ()) -> ServerState | None:
    """The server for the next request, or None if all of them were tried.

    draw: a random number in [0, 1) that breaks ties. tried: names of servers that failed this request already.
    """
    if len(servers) == 1:
        return None if servers[0].name in tried else servers[0]
    ejected = sorted((s for s in servers if s.ejected_until > now), key=lambda s: s.ejected_until, reverse=True)
    left_out = set(map(id, ejected[: len(servers) // 2]))
    untried = [s for s in servers if s.name not in tried]
    # An ejected server beats none at all: the others have failed this very request.
    candidates = [s for s in untried if id(s) not in left_out] or untried
    if not candidates:
        return None
    fewest = min(s.in_flight for s in candidates)
    idlest = [s for s in candidates if s.in_flight == fewest]
    return idlest[int(draw * len(idlest))]
