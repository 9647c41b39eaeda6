"""How many wrong passwords one address may send before its further ones are not even looked at. Pure.

One number per address: when all its wrong guesses will be forgiven, one ``interval`` after the other (GCRA). The table
is bounded; who guessed longest ago makes room, because somebody with thousands of addresses is not held up by it
anyway. It is this process's alone: a box with four workers allows up to four times as many.
"""

from __future__ import annotations

MAX_CLIENTS = 4096
_EPSILON_S = 1e-6  # the rounding of sums of floats


class Guesses:
    """``count`` wrong passwords in ``per_s`` seconds."""

    __slots__ = ("_forgiven_at", "_interval_s", "_per_s")

    def __init__(self, count: int, per_s: float) -> None:
        self._per_s = per_s
        self._interval_s = per_s / count
        self._forgiven_at: dict[str, float] = {}

    def wait_s(self, client: str, now: float) -> float:
        """Seconds until the client may try again; 0.0: now."""
        forgiven_at = self._forgiven_at.get(client)
        if forgiven_at is None:
            return 0.0
        wait_s = forgiven_at + self._interval_s - now - self._per_s
        return wait_s if wait_s > _EPSILON_S else 0.0

    def wrong(self, client: str, now: float) -> None:
        """The client sent a wrong password."""
        table = self._forgiven_at
        forgiven_at = max(table.pop(client, now), now) + self._interval_s
        if len(table) >= MAX_CLIENTS:
            del table[next(iter(table))]
        table[client] = forgiven_at
